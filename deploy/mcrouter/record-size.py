#!/usr/bin/env python3
"""Measures what a spent record takes in memcached, by adding records as Postern does.

    record-size.py              starts memcacheds, and prints a table
    record-size.py SOCKET COUNT adds records to a running one, and prints its statistics
"""
import base64
import hashlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

PRINTED = ("curr_items", "total_malloced", " evictions", ":chunk_size", ":used_chunks", ":mem_requested")
BATCH = 1_000
EXPIRES = int(time.time()) + 40 * 86400


def text(digest):
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


def record(number):
    """A bucket of four characters, and 16 bytes that name the record in it."""
    digest = hashlib.sha256(b"%d" % number).digest()
    return b"|" + text(digest[16:19]) + b"|#|" + text(digest[:16])


class Connection:
    def __init__(self, path):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(path)
        self.replies = self.stream.makefile("rb")

    def add(self, count):
        """Adds this number of records, or fewer when they do not fit; returns how many, and the last reply."""
        for start in range(0, count, BATCH):
            adds = (b"add %s 0 %d 7\r\nvvvvvvv\r\n" % (record(start + number), EXPIRES) for number in range(BATCH))
            self.stream.sendall(b"".join(adds))
            replies = [self.replies.readline() for _ in range(BATCH)]
            if (stored := replies.count(b"STORED\r\n")) < BATCH:
                return start + stored, replies[-1].decode().strip()
        return count, "STORED"

    def stats(self, command=b"stats"):
        self.stream.sendall(command + b"\r\n")
        while (line := self.replies.readline().decode().strip()) != "END":
            yield line


def memcached(options, work):
    """What `work` returns for a connection to a new memcached, and the process's megabytes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        user = ["-u", "root"] if os.getuid() == 0 else []
        with subprocess.Popen(["memcached", "-s", path, "-U", "0", "-t", "1", *user, *options]) as process:
            try:
                while not os.path.exists(path) and process.poll() is None:
                    time.sleep(0.05)
                result = work(Connection(path))
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            finally:
                process.kill()
    return result, int(status.split("VmRSS:")[1].split()[0]) * 1024 / 1e6


def million(connection):
    stored, reply = connection.add(1_000_000)
    assert reply == "STORED", f"{reply} after {stored} records"
    numbers = {}
    for command in (b"stats slabs", b"stats items"):
        for line in connection.stats(command):
            _, name, value = line.split()
            numbers[name.removeprefix("items:")] = int(value)
    # The class of these records is the one that holds nearly all.
    used = {name: value for name, value in numbers.items() if name.endswith(":used_chunks")}
    number = max(used, key=used.get).split(":")[0]
    requested = numbers[f"{number}:mem_requested"] / used[f"{number}:used_chunks"]
    return requested, numbers[f"{number}:chunk_size"], numbers["total_malloced"] / 1e6


def compare():
    print(subprocess.run(["memcached", "-V"], capture_output=True, text=True, check=True).stdout.strip())
    print("options  requested  chunk_size  a million, MB  process, MB  fit into -m 64, then")
    for options in (["-M"], ["-M", "-C"]):
        (requested, chunk, malloced), process = memcached(["-m", "256", *options], million)
        (fit, reply), _ = memcached(["-m", "64", *options], lambda connection: connection.add(1_000_000))
        row = f"{' '.join(options):7} {requested:10.1f} {chunk:11} {malloced:14.1f}"
        print(f"{row} {process:12.1f}  {fit:,}, {reply}", flush=True)


if len(sys.argv) == 1:
    compare()
else:
    connection = Connection(sys.argv[1])
    stored, reply = connection.add(int(sys.argv[2]))
    print("stored", stored, "and the last reply was", reply)
    for command in (b"stats", b"stats slabs", b"stats items"):
        for line in connection.stats(command):
            if any(name in line for name in PRINTED):
                print(line)
