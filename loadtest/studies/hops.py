"""What a second hop costs: the time to the first byte, and CPU, of tunnels agent -> A -> B -> target beside
agent -> B -> target.

usage: loadtest/run hops [ROUNDS] [TUNNELS]

Two gateways with TLS and one worker each, and four agents whose wallets were filled before: with one hop and with two,
each sharing HTTP/2 connections as by default, and with connections of its own for each tunnel (`gateway.tunnels = 1`).
In each of ROUNDS (12) rounds one client opens TUNNELS (300) tunnels through every agent in turn, one after the other,
sends a byte and gets it back. Writes loadtest/results/DATE-hops.md. Runs the programs that POSTERN_BINARY
(target/release/postern) and POSTERN_LOADTEST name, on loopback.
"""

import json, re, statistics, subprocess, sys
from rig import Failed, certificates, configs, reading
from rig.binaries import driver, postern
from rig.net import free_address, wait_until
from rig.programs import Programs
from rig.report import Report, rounds, table

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
TUNNELS = int(sys.argv[2]) if len(sys.argv) > 2 else 300
WARM_UP = 50
TOKENS = WARM_UP + ROUNDS * TUNNELS  # minted before, and not one meanwhile
NAMES = {(1, True): "one hop", (2, True): "two hops", (1, False): "one hop, own", (2, False): "two hops, own"}


class Agent:
    """An agent, and the gateways on its way."""

    def __init__(self, programs, made, gateways, hops, shares):
        self.name, self.results = NAMES[hops, shares], []
        self.address, admin = free_address(), free_address()
        text = configs.section("listen", {"address": self.address, "admin": admin})
        for prefix, gateway in zip(("", "first_hop.")[:hops], gateways):
            keys = {"url": f"https://{gateway.address}", "ca": made.ca}
            text += configs.section(f"{prefix}gateway", keys if shares else keys | {"tunnels": 1})
            text += configs.section(f"{prefix}issuer", {"url": programs.issuer_url})
            # It mints below one token only. The first hop's tokens also pay for challenges of the second.
            wallet = {"path": programs.path("wallet"), "low": 1, "high": TOKENS + 100 * bool(prefix)}
            text += configs.section(f"{prefix}wallet", wallet)
        command = [postern(), "client", "--config", programs.config("client.toml", text)]
        self.program = programs.start("agent", command, self.address)
        self.pids = {"agent": [self.program.pid]}
        self.pids |= {name: [gateway.pid] for name, gateway in zip("BA", gateways[:hops])}
        # The last hop's is filled behind the first one's, which pays for the way to its challenge.
        full = lambda: re.search(rf'^postern_wallet_tokens{{hop="last"}} {TOKENS}$', reading.metrics(admin), re.M)
        wait_until(f"the wallets of {self.name} are full", full)

    def drive(self, count):
        """Opens tunnels one after the other: the driver's result."""
        command = [driver(), "tunnels", "--wait", "--proxy", self.address, "--no-credentials", "--clients", "1"]
        pipe = subprocess.PIPE
        process = subprocess.Popen([*command, "--count", str(count)], stdin=pipe, stdout=pipe, text=True)
        if process.stdout.readline() != "ready\n":
            raise Failed(f"the driver failed: {self.program.output()}")
        used = reading.Used(self.pids)
        output, _ = process.communicate("\n")
        if process.returncode:
            raise Failed(f"{self.name}: the driver failed: {self.program.output()}")
        cpu = {name: sum(each) * 1e6 / count for name, each in used.read().items()}
        return json.loads(output) | {"cpu": cpu}

    def times(self, what, rank):
        return [result[f"{what}_us"][rank] for result in self.results]

    def cpu(self, name):
        return [result["cpu"].get(name, 0) for result in self.results]


ABOUT = f"""One client, {ROUNDS} interleaved rounds of {TUNNELS} tunnels, one after the other, through each agent.
First byte: from the client's first packet to the byte that came back from the target; open: to the agent's 200. Medians
of the rounds' percentiles, in parentheses the least. All on loopback, where a round trip takes no time: these are the
times that the programs take."""
SHARED = """**Shared** is the default: tunnels are streams of one HTTP/2 connection to B; with two hops that connection is a
tunnel through A, whose token is spent once for all of them. **Own** is `gateway.tunnels = 1` at each hop: for every
tunnel a TLS handshake with B, with two hops also one with A, and a token for each."""
NETWORK = """On a network round trips decide. A tunnel on a shared connection waits for one from the agent to B, which
leads through A, and for one from B to the target. A tunnel with connections of its own waits for three to B with one hop (TCP,
TLS, CONNECT); with two hops for three to A, and for two more to B through A."""


def add_tables(report, agents):
    first = agents[0]
    rows = []
    for agent in agents:
        cells = []
        for what in ("echoed", "answered"):
            for rank in ("p50", "p99"):
                values = agent.times(what, rank)
                cells.append(f"{statistics.median(values):,.0f} ({min(values):,.0f})")
        rows.append([agent.name, *cells])
    header = ["", "first byte p50, µs", "p99", "open p50, µs", "p99"]
    report.add("## Time", ABOUT, table(header, rows), SHARED)
    ratios = []
    for one, two in (agents[:2], agents[2:]):
        each = lambda rank: [b / a for a, b in zip(one.times("echoed", rank), two.times("echoed", rank))]
        cells = [f"{statistics.median(each(rank)):.2f}" for rank in ("p50", "p99")]
        more = [b - a for a, b in zip(one.times("echoed", "p50"), two.times("echoed", "p50"))]
        ratios.append([f"{two.name} beside {one.name}", *cells, f"{statistics.median(more):,.0f}"])
    report.add(table(["first byte, ratio within a round", "p50", "p99", "more at p50, µs"], ratios), NETWORK)
    cpu = [[agent.name, *(f"{statistics.median(agent.cpu(name)):,.0f}" for name in ("agent", "A", "B"))] for agent in agents]
    report.add("## CPU", "µs a tunnel, medians:", table(["", "agent", "A", "B"], cpu))
    lines = [rounds(f"{agent.name}, {rank}", agent.times("echoed", rank), 0) for agent in agents for rank in ("p50", "p99")]
    report.add("## All rounds", "First byte, µs:", "\n".join(lines))


with Programs() as programs:
    report = Report("hops", "Two hops beside one")
    made = certificates.make(programs.path("tls"))
    programs.issuer()
    gateways = [programs.gateway(configs.embedded(programs.path("spent")), tls=made.section()) for _ in "BA"]
    agents = [Agent(programs, made, gateways, *kind) for kind in NAMES]
    for agent in agents:
        agent.drive(WARM_UP)
    for number in range(ROUNDS):
        first = number % len(agents)
        for agent in agents[first:] + agents[:first]:
            agent.results.append(agent.drive(TUNNELS))
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    add_tables(report, agents)
    report.write()
