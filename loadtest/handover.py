#!/usr/bin/env python3
"""What a handover between two processes on one address costs clients: connections that are refused or reset.

    unshare -n sh -c 'ip link set lo up; python3 loadtest/handover.py reuseport 200'
    unshare -n sh -c 'ip link set lo up; echo 1 > /proc/sys/net/ipv4/tcp_migrate_req; python3 loadtest/handover.py reuseport 200'
    unshare -n sh -c 'ip link set lo up; python3 loadtest/handover.py shared 200'

reuseport: each process has a socket of its own on the address (SO_REUSEPORT). shared: they have the same socket, as from a socket
unit. The new process listens before the old one stops; the old one accepts until its queue is empty, then closes. Eight clients
connect, send a byte and read an answer without a pause.
"""

import multiprocessing
import os
import select
import socket
import sys
import time

ADDRESS = ("127.0.0.1", 18080)


def listener():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(ADDRESS)
    sock.listen(4096)
    sock.setblocking(False)
    return sock


def accept_all(sock):
    """Answers every connection in the queue."""
    while True:
        try:
            client, _ = sock.accept()
        except BlockingIOError:
            return
        try:
            client.setblocking(True)
            client.recv(1)
            client.sendall(b"ok")
        except OSError:
            pass  # counted by the client
        client.close()


def serve(sock, listens, stop):
    sock = sock or listener()
    listens.set()
    while not stop.is_set():
        if select.select([sock], [], [], 0.01)[0]:
            accept_all(sock)
    accept_all(sock)
    sock.close()
    os._exit(0)


def start(sock):
    listens, stop = multiprocessing.Event(), multiprocessing.Event()
    process = multiprocessing.Process(target=serve, args=(sock, listens, stop))
    process.start()
    listens.wait(5)
    return process, stop


def connect(over, results):
    served, failed = 0, 0
    while not over.is_set():
        try:
            with socket.create_connection(ADDRESS, 5) as sock:
                sock.sendall(b"x")
                is_served = sock.recv(2) == b"ok"
                # Closed by a reset: ports do not run out.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        except OSError:
            is_served = False
        served, failed = served + is_served, failed + (not is_served)
    results.put((served, failed))


def main(kind, handovers):
    sock = listener() if kind == "shared" else None
    process, stop = start(sock)
    over, results = multiprocessing.Event(), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=connect, args=(over, results)) for _ in range(8)]
    for client in clients:
        client.start()
    for _ in range(handovers):
        time.sleep(0.03)
        following = start(sock)
        time.sleep(0.01)
        stop.set()
        process.join(5)
        process, stop = following
    over.set()
    counts = [results.get(timeout=10) for _ in clients]
    stop.set()
    print(f"{kind}: {handovers} handovers, {sum(c[0] for c in counts)} served, {sum(c[1] for c in counts)} failed")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
