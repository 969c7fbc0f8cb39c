"""memcached and twemproxy alone: the size of a record, and the CPU of a command."""

import os, re, statistics, subprocess, sys, time

from rig import ROOT, reading
from rig.net import connect
from rig.tokens import record_of
from tables import table


def records(report, programs, most):
    """The size of records, by memcached's count and by the growth of the process, hash table included."""
    rows = []
    for count in (max(1000, number // 1000 * 1000) for number in (most // 4, most)):  # the script adds thousands
        server = programs.memcached(4096, where=programs.path("records"))
        empty = reading.resident(server.pid)
        script = os.path.join(ROOT, "deploy/mcrouter/record-size.py")
        command = [sys.executable, script, server.address, str(count)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        number = lambda name: int(re.search(rf"{name} (\d+)", output)[1])
        assert number("curr_items") == count, output
        full = reading.resident(server.pid)
        programs.stop(server)
        each = (number("total_malloced") / count, (full - empty) / count, full / count)
        rows.append([f"{count:,}", number("chunk_size"), *(f"{size:.1f}" for size in each)])
    head = ["records", "chunk of its class, bytes", "total_malloced a record"]
    head += ["growth of the process a record", "process a record"]
    table(report, "A spent record in memcached", head, rows)


class Line:
    """A connection that sends commands in bursts and reads all replies of one before the next."""

    def __init__(self, address):
        self.stream = connect(address)
        self.expires = int(time.time()) + 3600

    def burst(self, data, length):
        self.stream.sendall(data)
        while length > 0:
            got = self.stream.recv(1 << 16)
            assert got, "the server closed the connection"
            length -= len(got)
        assert length == 0, "more was received than expected"

    def add(self, keys):
        value = b" 0 %d 7\r\n%s\r\n" % (self.expires, b"v" * 7)
        self.burst(b"".join(b"add " + key + value for key in keys), len(b"STORED\r\n") * len(keys))

    def get(self, keys):
        """One `get` of keys that all miss."""
        self.burst(b"get " + b" ".join(keys) + b"\r\n", len(b"END\r\n"))


def commands(report, programs, rounds):
    """CPU of the servers for one command, by how many come in one write: the gateway joins `get`s of a burst."""
    rows = []
    server = programs.memcached(2048)
    router = programs.twemproxy([server], timeout=400)
    lines = {"direct": Line(server.address), "routed": Line(router.address)}
    for burst in (1, 4, 16, 64):
        costs = {}
        for _ in range(rounds):
            for way, line in lines.items():
                for verb in ("get", "add"):
                    number = 20_000 // burst if burst > 1 else 5_000
                    keys = [[record_of(os.urandom(32)) for _ in range(burst)] for _ in range(number)]
                    used = reading.Used({"memcached": [server.pid], "twemproxy": [router.pid]})
                    for some in keys:
                        getattr(line, verb)(some)
                    for name, [seconds] in used.read().items():
                        costs.setdefault((way, verb, name), []).append(seconds * 1e6 / (number * burst))
        median = lambda *key: f"{statistics.median(costs[key]):.2f}"
        direct = [median("direct", verb, "memcached") for verb in ("add", "get")]
        rows.append([burst, *direct, *(median("routed", verb, "twemproxy") for verb in ("add", "get"))])
    programs.stop(router, server)
    head = ["commands in one write"]
    head += [f"{name}, `{verb}` µs" for name in ("memcached", "twemproxy") for verb in ("add", "get")]
    table(report, "CPU of memcached and twemproxy for one command", head, rows)
