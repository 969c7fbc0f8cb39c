"""Addresses on loopback, and whether a program answers there."""

import random, socket, time, urllib.error, urllib.request
from . import Failed

PATIENCE = 60  # seconds to wait for a program's answer: a busy machine is slow, not broken
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the environment
given = set()


def free_port():
    """A free port below those that the system hands out: no connection will take it before the program does."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first = int(file.read().split()[0])
    while True:
        port = random.randrange(10000, max(first, 20000))
        if port in given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        given.add(port)
        return port


def free_address():
    return f"127.0.0.1:{free_port()}"


def connect(address, timeout=PATIENCE):
    """A connection that sends each write at once."""
    host, port = address.rsplit(":", 1)
    stream = socket.create_connection((host, int(port)), timeout=timeout)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def listens(address):
    try:
        connect(address).close()
        return True
    except ConnectionError:
        return False


def get(url, timeout=PATIENCE):
    """The body of a page, whatever its status."""
    try:
        with DIRECT.open(url, timeout=timeout) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def is_ready(admin):
    """Whether all daemons behind an admin listener can do their work."""
    try:
        with DIRECT.open(f"http://{admin}/readyz", timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_until(what, true):
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > PATIENCE:
            raise Failed(f"waited {PATIENCE} s in vain until {what}")
        time.sleep(0.01)
