"""Fills stores with many spent records, as if a gateway had spent that number of tokens. The tokens do not exist."""

import os, time, zlib
from .net import connect, wait_until
from .reading import memcached_stats
from .tokens import record_of

BATCH, CONNECTIONS = 2000, 4
KEPT = 40 * 86400  # seconds until the records expire: as a gateway writes them, an absolute time
HEADERS = 8192  # bytes before the records of the embedded store's file (crates/spend/src/embedded/format.rs)


def memcached(address, count):
    """Adds records as a gateway names them. Each reply must be STORED."""
    expires, streams = int(time.time()) + KEPT, [connect(address) for _ in range(CONNECTIONS)]
    middle = b" 0 %d 7\r\n" % expires + b"v" * 7 + b"\r\n"

    def send(stream, number):
        stream.sendall(b"".join(b"add " + record_of(os.urandom(32)) + middle for _ in range(number)))

    def check(stream, number):
        left = b"STORED\r\n" * number
        while left:
            got = stream.recv(len(left))
            assert got and left.startswith(got), got[:200]
            left = left[len(got) :]

    sizes = [BATCH] * (count // BATCH) + [count % BATCH] * bool(count % BATCH)
    for start in range(0, len(sizes), CONNECTIONS):
        now = list(zip(streams, sizes[start : start + CONNECTIONS]))
        for each in now:
            send(*each)
        for each in now:
            check(*each)
    for stream in streams:
        stream.close()
    wait_until("memcached has grown its table", lambda: grown(address, middle))


def grown(address, middle):
    """Whether the hash table has as many buckets as memcached wants for its items. It grows on an `add`, a step at a
    time: without this it would still grow during the measurement."""
    stats = memcached_stats(address)
    if stats["hash_is_expanding"] != "0":
        return False
    if int(stats["curr_items"]) <= 1.5 * 2 ** int(stats["hash_power_level"]):
        return True
    with connect(address) as stream:
        stream.sendall(b"add " + record_of(os.urandom(32)) + middle)
        assert stream.recv(64) == b"STORED\r\n"
    return False


def embedded(path, header, count):
    """Writes a records file: the header of one that a gateway made, then `count` records of 16 bytes and their
    CRC-32."""
    assert len(header) == HEADERS
    with open(path, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(header)
        for start in range(0, count, 100_000):
            number = min(100_000, count - start)
            keys = os.urandom(16 * number)
            parts = []
            for at in range(0, 16 * number, 16):
                key = keys[at : at + 16]
                parts.append(key + zlib.crc32(key).to_bytes(4, "little"))
            file.write(b"".join(parts))
