"""The 40 ms with the real programs: commands to memcached, directly and through twemproxy, by the shape of their
writes; and the gateway's own checks, with and without a hop in front of the store that breaks its commands up.

usage: loadtest/run story [ROUNDS]

Each of ROUNDS (7) rounds takes every shape in turn: 40 commands, one after the other, on a connection that has done
some before. Then a gateway spends 40 tokens, one after the other, through the same memcached and twemproxy, and
through a hop that forwards every command in three writes under Nagle's algorithm; its histograms have the durations of
its checks. Writes loadtest/results/DATE-story.md and its plot. Runs the programs that POSTERN_BINARY
(target/release/postern), `memcached` and `nutcracker` name, on loopback.
"""

import itertools, math, os, socket, sys, threading, time
from rig import plot, reading, tokens
from rig.clients import Clients
from rig.configs import shared
from rig.net import connect
from rig.programs import Programs
from rig.report import Report, rounds, table
from rig.units import time as shown

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
COMMANDS, WARM_UP = 40, 10
STAGE = "postern_check_duration_seconds"
NODELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
BROKEN = "a hop that breaks commands up"


def command(name, number):
    """One command in the three pieces that memcache-async wrote (0.6 for `get`, later ones for `add`)."""
    key = b"|o9J-|#|%022d" % number  # all in the first bucket
    if name == "get":
        return [b"get ", key, b"\r\n"]
    return [b"add " + key + b" 0 0 7\r\n", b"v" * 7, b"\r\n"]


class Shape:
    """A connection that writes commands in one shape, and their durations."""

    def __init__(self, endpoint, address, name, pieces, nodelay):
        self.stream = connect(address)
        self.stream.setsockopt(*NODELAY, nodelay)
        self.name, self.pieces, self.rounds = name, pieces, []
        writes = "one write" if pieces == 1 else "three writes"
        self.label = f"{name}, {endpoint}, {writes}, {'nodelay' if nodelay else 'Nagle'}"

    def one(self, number):
        parts = command(self.name, number)
        end = b"END\r\n" if self.name == "get" else b"STORED\r\n"
        began = time.perf_counter()
        for part in parts if self.pieces == 3 else [b"".join(parts)]:
            self.stream.send(part)
        reply = self.stream.recv(4096)
        took = time.perf_counter() - began
        assert reply == end, reply
        return took

    def round(self, numbers):
        for _ in range(WARM_UP):
            self.one(next(numbers))
        self.rounds.append(sorted(self.one(next(numbers)) for _ in range(COMMANDS)))

    def all(self):
        return sorted(took for one in self.rounds for took in one)


def at(times, share):
    return times[min(len(times) - 1, math.ceil(share * len(times)) - 1)]


def hop(address):
    """A proxy that copies as the gateway never writes: it forwards each piece in three writes, under Nagle."""
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source, sink, pieces):
        try:
            while got := source.recv(1 << 16):
                step = max(1, math.ceil(len(got) / pieces))
                for start in range(0, len(got), step):
                    sink.send(got[start : start + step])
        except OSError:
            pass  # one end was closed: close the other
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # this end was closed already

    def serve():
        while True:
            inner, outer = listener.accept()[0], connect(address)
            outer.setsockopt(*NODELAY, 0)
            inner.setsockopt(*NODELAY, 1)
            for ends in ((inner, outer, 3), (outer, inner, 1)):
                threading.Thread(target=copy, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]


def checks(gateway, requests):
    """The stages of one gateway's checks, as histograms."""
    before, clients = reading.metrics(gateway.admin), Clients([gateway.address], 1)
    answered = clients.run([requests])
    clients.close()
    assert answered == {502: len(requests)}, answered
    after = reading.metrics(gateway.admin)
    stages = lambda text, stage: reading.buckets(text, STAGE, stage=stage)
    return {stage: reading.between(stages(before, stage), stages(after, stage)) for stage in ("get", "add", "total")}


def together(histograms):
    return {bound: sum(one[bound] for one in histograms) for bound in histograms[0]}


ABOUT_COMMANDS = f"""A blocking client in Python, one command after the other, {ROUNDS} rounds of {COMMANDS} commands on
each kept connection, all shapes in turns. memcached has one thread; twemproxy is between for its rows. The time is
that from the first write to the reply, by the clock, over all rounds; in parentheses the least and the most of the
rounds' medians."""
ABOUT_CHECKS = f"""A gateway with one worker, `transport = "pipelined"`, `hint = "before"`, no cache of spent keys
(`spent_cache = "0B"`), deadlines long enough for a stall; one client, {COMMANDS} fresh tokens in each round, one after
the other. From `{STAGE}` of its `/metrics`; a quantile lies between the bounds of its bucket, evenly, as Prometheus
computes it. The last rows are the control: a proxy in front of the same memcached that forwards each write of the
gateway in three writes, with Nagle's algorithm."""


def measure(programs):
    """The shapes with their times; and for each path to the store, every round's histograms of the gateway's stages."""
    memcached = programs.memcached()
    router = programs.twemproxy([memcached], timeout=5000)
    endpoints = {"memcached": memcached.address, "twemproxy": router.address}
    shapes = [
        Shape(endpoint, address, name, pieces, nodelay)
        for endpoint, address in endpoints.items()
        for name in ("get", "add")
        for pieces, nodelay in ((3, 0), (1, 0), (3, 1), (1, 1))
    ]
    programs.issuer()
    # Deadlines that a stalled command keeps, and the hint before the verification, so `get` measures only the store.
    patient = {"timeout": "8s", "hint": "before", "transport": "pipelined"}
    ways = [*endpoints.items(), (BROKEN, hop(memcached.address))]
    gateways = {name: programs.gateway(shared(address, **patient)) for name, address in ways}
    values = tokens.mint(programs.issuer_url, gateways["memcached"], COMMANDS, programs.path("tokens"))
    requests, numbers = [tokens.request(value) for value in values], itertools.count(1)
    stages = {name: [] for name in gateways}
    for number in range(ROUNDS):
        for shape in shapes:
            shape.round(numbers)
        for name, gateway in gateways.items():
            stages[name].append(checks(gateway, requests))
            assert tokens.forget(memcached.address, values) == COMMANDS
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    return shapes, stages


def tell_commands(report, shapes):
    rows, bars = [], []
    for shape in shapes:
        times, medians = shape.all(), [at(one, 0.5) for one in shape.rounds]
        stalled = sum(took > 0.038 for took in times)
        half, most = at(times, 0.5), at(times, 0.99)
        middle_and_range = f"{shown(half)} ({shown(min(medians))} to {shown(max(medians))})"
        rows.append([shape.label, middle_and_range, shown(most), shown(times[-1]), f"{stalled} of {len(times)}"])
        bars.append((shape.label, times[0] * 1e6, half * 1e6, most * 1e6))
    report.add("## Commands", ABOUT_COMMANDS, table(["command", "median", "p99", "most", "over 38 ms"], rows))
    plot.ranges(
        report.picture(
            "", "A logarithmic plot of the table: three writes under Nagle at 44 ms, all else far below 1 ms"
        ),
        "One memcached command, by the shape of its writes",
        "dot: median; bar: fastest to 99th percentile",
        "from the first write to the reply, by the clock",
        bars,
        slow=10_000,
    )


def tell_checks(report, stages):
    rows = []
    for name, rounds_of in stages.items():
        for stage in ("get", "add", "total"):
            counts = together([one[stage] for one in rounds_of])
            medians = [reading.quantile(one[stage], 0.5) for one in rounds_of]
            middle_and_range = f"{reading.quantile_text(counts, 0.5)} ({shown(min(medians))} to {shown(max(medians))})"
            wall = "" if stage == "total" else str(reading.number_between(counts, 0.038, 0.05))
            rows.append([name, stage, middle_and_range, reading.quantile_text(counts, 0.99), f"{counts[math.inf]:.0f}", wall])
    header = ["gateway to", "stage", "median", "p99", "checks", "from 38 to 50 ms"]
    report.add("## The gateway's own checks", ABOUT_CHECKS, table(header, rows))


with Programs() as programs:
    report = Report("story", "The 40 ms, with the real programs")
    shapes, stages = measure(programs)
    tell_commands(report, shapes)
    tell_checks(report, stages)
    report.add("## All rounds", "Medians of each round in µs:")
    lines = [rounds(shape.label, [at(one, 0.5) * 1e6 for one in shape.rounds]) for shape in shapes]
    for name, rounds_of in stages.items():
        for stage in ("get", "add"):
            medians = [reading.quantile(one[stage], 0.5) * 1e6 for one in rounds_of]
            lines.append(rounds(f"gateway to {name}, {stage}", medians, 0))
    report.add("\n".join(lines))
    report.write()
os._exit(0)  # the threads of the hop wait for bytes for ever
