#!/usr/bin/env python3
"""Measures the size of a spent record in memcached: adds records as Postern does, then prints memcached's statistics.

    memcached -s ./s -U 0 -t 1 -m 256 -M &
    python3 record-size.py ./s 1000000
"""
import base64
import hashlib
import socket
import sys
import time

PRINTED = ("curr_items", "total_malloced", " evictions", ":chunk_size", ":used_chunks", ":mem_requested")
BATCH = 1000

stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
replies = stream.makefile("rb")
expires = int(time.time()) + 40 * 86400
stored = 0


def add(number):
    key = b"ps1." + base64.urlsafe_b64encode(hashlib.sha256(b"%d" % number).digest()).rstrip(b"=")
    return b"add %s 0 %d 22\r\n%s\r\n" % (key, expires, b"v" * 22)


reply = b""
for start in range(0, int(sys.argv[2]), BATCH):
    stream.sendall(b"".join(map(add, range(start, start + BATCH))))
    for _ in range(BATCH):
        reply = replies.readline()
        stored += reply == b"STORED\r\n"
print("stored", stored, "and the last reply was", reply.decode().strip())
for command in (b"stats\r\n", b"stats slabs\r\n", b"stats items\r\n"):
    stream.sendall(command)
    while (line := replies.readline().decode().strip()) != "END":
        if any(name in line for name in PRINTED):
            print(line)
