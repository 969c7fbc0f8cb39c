"""The cost of a check as gateways and memcached servers are added: CPU of each process, and the records of each server.

usage: loadtest/run scaling [ROUNDS] [CHECKS]

Each of ROUNDS (15) rounds takes, in turn, one memcached without a router and 1 to 4 of them behind twemproxy, with the
pipelined and with the pooled transport; and each of these with 1 to 4 gateways of one worker. Every gateway gets the
same work: CHECKS (1000) fresh tokens from 16 clients on kept connections; the target refuses the connection, so that
the check is nearly all of the work. Writes loadtest/results/DATE-scaling.md and its plots. Runs the programs that
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
PATIENT = {"timeout": "5s", "pool_size": 20}


class Store:
    """Servers and their endpoint: a router, or a single server itself."""

    def __init__(self, programs, servers, routed):
        self.servers = [programs.memcached() for _ in range(servers)]
        self.router = programs.twemproxy(self.servers, timeout=5000) if routed else None
        self.endpoint = (self.router or self.servers[0]).address
        self.name = f"{servers} behind twemproxy" if routed else "1, no router"

    def items(self):
        return [int(reading.memcached_stats(server.address)["curr_items"]) for server in self.servers]


def turn(store, gateways, clients, values):
    """One measurement: seconds by the clock, seconds of CPU of each process, and the new records of each server."""
    work = [[tokens.request(value) for value in values[n * CHECKS : (n + 1) * CHECKS]] for n in range(len(gateways))]
    pids = {"gateway": [gateway.pid for gateway in gateways], "memcached": [server.pid for server in store.servers]}
    pids["router"] = [store.router.pid] if store.router else []
    held, began, used = store.items(), time.perf_counter(), reading.Used(pids)
    answered = clients.run(work)
    took, seconds = time.perf_counter() - began, used.read()
    assert answered == {502: CHECKS * len(gateways)}, answered
    got = [now - before for now, before in zip(store.items(), held)]
    assert tokens.forget(store.endpoint, values[: CHECKS * len(gateways)]) == CHECKS * len(gateways)
    return {"took": took, "seconds": seconds, "got": got}


def per_check(result, name, gateways):
    """µs of CPU of all processes of that name for each check."""
    return sum(result["seconds"][name]) * 1e6 / (CHECKS * gateways)


def total(result, gateways):
    return sum(per_check(result, name, gateways) for name in ("gateway", "router", "memcached"))


def measure(programs, stores, values, results):
    for store in stores:
        for transport in TRANSPORTS:
            gateways = [programs.gateway(shared(store.endpoint, transport, **PATIENT)) for _ in range(MOST)]
            for count in range(1, MOST + 1):
                clients = Clients([gateway.address for gateway in gateways[:count]], CLIENTS)
                warm = [[]] * (count - 1) + [[tokens.request(value) for value in values[:200]]]
                assert clients.run(warm) == {502: 200}  # the newest gateway is not warm yet
                assert tokens.forget(store.endpoint, values[:200]) == 200
                result = turn(store, gateways[:count], clients, values)
                results.setdefault((transport, store.name, count), []).append(result)
                clients.close()
            programs.stop(*gateways)


def cost_table(results, stores, transport):
    """The whole grid: CPU of all processes for each check, and its ratio to one gateway with the same servers."""
    rows = []
    for store in stores:
        row, base = [store.name], [total(one, 1) for one in results[transport, store.name, 1]]
        for count in range(1, MOST + 1):
            here = [total(one, count) for one in results[transport, store.name, count]]
            row.append(f"{middle(here)}; {beside(here, base)}")
        rows.append(row)
    return table(["memcacheds"] + [f"{n} gateway{'s' * (n > 1)}" for n in range(1, MOST + 1)], rows)


def shares_table(results, stores, transport):
    rows = []
    for store in stores:
        for count in (1, MOST):
            some = results[transport, store.name, count]
            middle_of = lambda figure: reading.median([figure(one) for one in some])
            parts = [middle_of(lambda one: per_check(one, part, count)) for part in ("gateway", "router", "memcached")]
            each = [
                middle_of(lambda one: one["seconds"]["memcached"][server] * 1e6 / (CHECKS * count))
                for server in range(len(store.servers))
            ]
            rows.append(
                [store.name, count]
                + [f"{part:.1f}" for part in parts]
                + [", ".join(f"{value:.1f}" for value in each)]
                + [f"{1e6 / middle_of(lambda one: total(one, count)):,.0f}"]
                + [f"{middle_of(lambda one: CHECKS * count / one['took']):,.0f}"]
            )
    parts = ["gateways, µs", "router, µs", "memcacheds, µs", "each memcached, µs"]
    return table(["memcacheds", "gateways", *parts, "checks a CPU second", "checks/s by the clock"], rows)


def balance(results, stores):
    rows = []
    for store in stores[2:]:
        # The same tokens go to the same servers in each round; the watch may have written some, too.
        got = min((one["got"] for one in results["pipelined", store.name, MOST]), key=sum)
        even = sum(got) / len(got)
        rows.append([store.name, ", ".join(f"{one:,} ({one / even - 1:+.0%})" for one in got)])
    return table(["memcacheds", f"records of {CHECKS * MOST:,} tokens, each server (beside an even share)"], rows)


ABOUT = f"""Each gateway has one worker and gets {CHECKS:,} fresh tokens in a turn from {CLIENTS} clients with one
outstanding request each; the targets refuse the connection. So four gateways do four times the work of one. Default
configuration, except that the process caches no spent keys (`spent_cache = "0B"`: every check queries the store),
deadlines are 5 s, and a pool has 20 connections. memcached has one thread each; `twemproxy` is one process. {ROUNDS}
rounds; every round takes every row in turn. CPU is the time all threads were on a processor
(the process's CPU clock), user and kernel, divided by checks; the gateway's part holds HTTP, the signature (some
20 µs) and the refused dial too."""
CLOCK = """**Two cores cannot show a speed-up by the clock**: one gateway, memcached and the clients fill them. What
it does show is whether a check costs more CPU with more gateways or servers. The clock's rate is listed for
completeness."""


def add_costs(report, results, stores):
    for transport in TRANSPORTS:
        report.add(
            f"## {transport.capitalize()}: CPU of all processes, µs a check",
            "Median of the rounds (least to most); then the least and the median beside those of one gateway with the "
            "same memcacheds.",
            cost_table(results, stores, transport),
            "Of the same, the medians by process:",
            shares_table(results, stores, transport),
        )


def draw(report, results, stores):
    least = lambda some, figure: min(figure(one) for one in some)
    series = {
        f"{transport}, {name}": [
            (count, least(results[transport, name, count], lambda one: total(one, count)))
            for count in range(1, MOST + 1)
        ]
        for transport in TRANSPORTS
        for name in (stores[0].name, stores[-1].name)
    }
    plot.curves(
        report.picture("gateways", "CPU a check for one to four gateways: the curves of the tables"),
        "Cost of a check as gateways are added",
        "gateways, router and memcacheds together; least of the rounds",
        "gateways (each with the same work)",
        "µs of CPU a check",
        series,
    )
    series = {
        f"{transport}, {part}": [
            (len(store.servers), least(results[transport, store.name, MOST], lambda one: per_check(one, part, MOST)))
            for store in stores[1:]
        ]
        for transport in TRANSPORTS
        for part in ("router", "memcached")
    }
    plot.curves(
        report.picture("servers", "CPU a check of router and memcacheds for one to four memcacheds"),
        "Cost of the store as servers are added",
        f"{MOST} gateways; all memcacheds together; least of the rounds",
        "memcacheds behind one twemproxy",
        "µs of CPU a check",
        series,
    )


with Programs() as programs:
    report = Report("scaling", "Scaling gateways and memcacheds")
    stores = [Store(programs, 1, False)] + [Store(programs, count, True) for count in range(1, MOST + 1)]
    programs.issuer()
    first = programs.gateway(shared(stores[0].endpoint, "pipelined"))
    values = tokens.mint(programs.issuer_url, first, CHECKS * MOST, programs.path("tokens"))
    programs.stop(first)
    results = {}
    for number in range(ROUNDS):
        measure(programs, stores, values, results)
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    report.add(ABOUT, CLOCK, LEAST)
    add_costs(report, results, stores)
    draw(report, results, stores)
    report.add(
        "## Distribution of records",
        balance(results, stores),
        "twemproxy's `ketama` with `fnv1a_64` distributes them, not Postern (`deploy/twemproxy/nutcracker.yml`).",
    )
    report.add("## All rounds", "µs of CPU a check of all processes together:")
    lines = [
        rounds(f"{transport}, {name}, {count} gateway{'s' * (count > 1)}", [total(one, count) for one in some])
        for (transport, name, count), some in results.items()
    ]
    report.add("\n".join(lines))
    report.write()
