"""What a check costs as gateways and memcached servers are added: CPU of each process, and how records spread.

usage: loadtest/run scaling [ROUNDS] [CHECKS]

Each of ROUNDS (15) rounds takes, in turn, one memcached without a router and 1 to 4 of them behind twemproxy, with the
pipelined and with the pooled transport; and each of these with 1 to 4 gateways of one worker. Every gateway gets the
same work: CHECKS (1000) fresh tokens from 16 clients on kept connections; the target refuses the connection, so that a
check is nearly all there is to do. Writes loadtest/results/DATE-scaling.md and its plots. Runs the programs that
POSTERN_BINARY (target/release/postern), `memcached` and `nutcracker` name, on loopback.
"""

import sys, time
from rig import plot, reading, tokens
from rig.clients import Clients
from rig.configs import shared
from rig.programs import Programs
from rig.report import LEAST, Report, beside, middle, rounds, table

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
CHECKS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
CLIENTS, MOST = 16, 4
TRANSPORTS = ("pipelined", "pooled")
# Long deadlines: on a machine with fewer cores than processes, waiting for a core is no outage.
PATIENT = {"timeout": "5s", "checkout_timeout": "5s", "pool_size": 20}


class Memory:
    """Servers, and the door to them: a router, or with one server the server itself."""

    def __init__(self, programs, servers, routed):
        self.servers = [programs.memcached() for _ in range(servers)]
        self.router = programs.twemproxy(self.servers, timeout=5000) if routed else None
        self.door = (self.router or self.servers[0]).address
        self.name = f"{servers} behind twemproxy" if routed else "1, no router"

    def items(self):
        return [int(reading.memcached_stats(server.address)["curr_items"]) for server in self.servers]


def turn(memory, gateways, clients, values):
    """One measurement: seconds of CPU for each process, by the clock, and the records that each server got."""
    work = [[tokens.request(value) for value in values[n * CHECKS : (n + 1) * CHECKS]] for n in range(len(gateways))]
    pids = {"gateway": [gateway.pid for gateway in gateways], "memcached": [server.pid for server in memory.servers]}
    pids["router"] = [memory.router.pid] if memory.router else []
    held, began, used = memory.items(), time.perf_counter(), reading.Used(pids)
    answered = clients.run(work)
    took, seconds = time.perf_counter() - began, used.read()
    assert answered == {502: CHECKS * len(gateways)}, answered
    got = [now - before for now, before in zip(memory.items(), held)]
    assert tokens.forget(memory.door, values[: CHECKS * len(gateways)]) == CHECKS * len(gateways)
    return {"took": took, "seconds": seconds, "got": got}


def per_check(result, name, gateways):
    """µs of CPU of all processes of that name for each check."""
    return sum(result["seconds"][name]) * 1e6 / (CHECKS * gateways)


def total(result, gateways):
    return sum(per_check(result, name, gateways) for name in ("gateway", "router", "memcached"))


def measure(programs, memories, values, results):
    for memory in memories:
        for transport in TRANSPORTS:
            gateways = [programs.gateway(shared(memory.door, transport, **PATIENT)) for _ in range(MOST)]
            for count in range(1, MOST + 1):
                clients = Clients([gateway.address for gateway in gateways[:count]], CLIENTS)
                warm = [[]] * (count - 1) + [[tokens.request(value) for value in values[:200]]]
                assert clients.run(warm) == {502: 200}  # the newest gateway has done nothing yet
                assert tokens.forget(memory.door, values[:200]) == 200
                result = turn(memory, gateways[:count], clients, values)
                results.setdefault((transport, memory.name, count), []).append(result)
                clients.close()
            programs.stop(*gateways)


def cost_table(results, memories, transport):
    """The whole grid: CPU of all processes for each check, and what it is beside one gateway with the same servers."""
    rows = []
    for memory in memories:
        row, base = [memory.name], [total(one, 1) for one in results[transport, memory.name, 1]]
        for count in range(1, MOST + 1):
            here = [total(one, count) for one in results[transport, memory.name, count]]
            row.append(f"{middle(here)}; {beside(here, base)}")
        rows.append(row)
    return table(["memcacheds"] + [f"{n} gateway{'s' * (n > 1)}" for n in range(1, MOST + 1)], rows)


def shares_table(results, memories, transport):
    rows = []
    for memory in memories:
        for count in (1, MOST):
            some = results[transport, memory.name, count]
            middle_of = lambda figure: reading.median([figure(one) for one in some])
            parts = [middle_of(lambda one: per_check(one, part, count)) for part in ("gateway", "router", "memcached")]
            each = [
                middle_of(lambda one: one["seconds"]["memcached"][server] * 1e6 / (CHECKS * count))
                for server in range(len(memory.servers))
            ]
            rows.append(
                [memory.name, count]
                + [f"{part:.1f}" for part in parts]
                + [", ".join(f"{value:.1f}" for value in each)]
                + [f"{1e6 / middle_of(lambda one: total(one, count)):,.0f}"]
                + [f"{middle_of(lambda one: CHECKS * count / one['took']):,.0f}"]
            )
    parts = ["gateways, µs", "router, µs", "memcacheds, µs", "each memcached, µs"]
    return table(["memcacheds", "gateways", *parts, "checks a CPU second", "checks/s by the clock"], rows)


def balance(results, memories):
    rows = []
    for memory in memories[2:]:
        # The same tokens go to the same servers in each round; in some rounds canaries were written, too.
        got = min((one["got"] for one in results["pipelined", memory.name, MOST]), key=sum)
        even = sum(got) / len(got)
        rows.append([memory.name, ", ".join(f"{one:,} ({one / even - 1:+.0%})" for one in got)])
    return table(["memcacheds", f"records of {CHECKS * MOST:,} tokens, each server (beside an even share)"], rows)


SAY = f"""Each gateway has one worker and gets {CHECKS:,} fresh tokens in a turn from {CLIENTS} clients with one
request under way each; the targets refuse the connection. So four gateways do four times the work of one. Default
configuration, but that the process remembers no spent keys (`spent_cache = "0B"`: every check asks the store),
deadlines are 5 s, and a pool has 20 connections. memcached has one thread each; `twemproxy` is one process. {ROUNDS}
rounds; every round takes every row in turn. CPU is the time all threads were on a processor
(the process's CPU clock), user and kernel, divided by checks; the gateway's part holds HTTP, the signature (some
20 µs) and the refused dial too."""
CLOCK = """**Two cores cannot show a speed-up by the clock**: one gateway, memcached and the clients fill them. What
can be seen is whether a check costs more CPU when there are more gateways or servers. The clock's rate is there to be
complete."""


def tell_costs(report, results, memories):
    for transport in TRANSPORTS:
        report.add(
            f"## {transport.capitalize()}: CPU of all processes, µs a check",
            "Median of the rounds (least to most); then the least and the median beside those of one gateway with the "
            "same memcacheds.",
            cost_table(results, memories, transport),
            "Of the same, the medians by process:",
            shares_table(results, memories, transport),
        )


def draw(report, results, memories):
    least = lambda some, figure: min(figure(one) for one in some)
    series = {
        f"{transport}, {name}": [
            (count, least(results[transport, name, count], lambda one: total(one, count)))
            for count in range(1, MOST + 1)
        ]
        for transport in TRANSPORTS
        for name in (memories[0].name, memories[-1].name)
    }
    plot.curves(
        report.picture("gateways", "CPU a check for one to four gateways: the curves of the tables"),
        "What a check costs as gateways are added",
        "gateways, router and memcacheds together; least of the rounds",
        "gateways (each with the same work)",
        "µs of CPU a check",
        series,
    )
    series = {
        f"{transport}, {part}": [
            (len(memory.servers), least(results[transport, memory.name, MOST], lambda one: per_check(one, part, MOST)))
            for memory in memories[1:]
        ]
        for transport in TRANSPORTS
        for part in ("router", "memcached")
    }
    plot.curves(
        report.picture("servers", "CPU a check of router and memcacheds for one to four memcacheds"),
        "What the memory costs as servers are added",
        f"{MOST} gateways; all memcacheds together; least of the rounds",
        "memcacheds behind one twemproxy",
        "µs of CPU a check",
        series,
    )


with Programs() as programs:
    report = Report("scaling", "Scaling gateways and memcacheds")
    memories = [Memory(programs, 1, False)] + [Memory(programs, count, True) for count in range(1, MOST + 1)]
    programs.issuer()
    first = programs.gateway(shared(memories[0].door, "pipelined"))
    values = tokens.mint(programs.issuer_url, first, CHECKS * MOST, programs.path("tokens"))
    programs.stop(first)
    results = {}
    for number in range(ROUNDS):
        measure(programs, memories, values, results)
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    report.add(SAY, CLOCK, LEAST)
    tell_costs(report, results, memories)
    draw(report, results, memories)
    report.add(
        "## How records spread",
        balance(results, memories),
        "twemproxy's `ketama` with `fnv1a_64` places them, not Postern (`deploy/twemproxy/nutcracker.yml`).",
    )
    report.add("## All rounds", "µs of CPU a check of all processes together:")
    lines = [
        rounds(f"{transport}, {name}, {count} gateway{'s' * (count > 1)}", [total(one, count) for one in some])
        for (transport, name, count), some in results.items()
    ]
    report.add("\n".join(lines))
    report.write()
