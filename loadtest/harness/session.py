"""A run from its first to its last scenario: what is started for it, and what each is held to."""

import time
from dataclasses import dataclass, field
from . import deployment as deployed
from . import drain, judge
from .deployment import Failed
from .k6 import K6
from .sampler import Memory, Sampler, svg
from .scenarios import QUICK, SCENARIOS

SPARE = 1  # tokens that garbage is made of
FDS_MORE = 4  # file descriptors that a daemon may keep after its first traffic: a pooled connection or two


@dataclass
class Result:
    """What came of one scenario."""

    name: str
    question: str
    deployment: str
    minutes: float
    rate: float
    phases: dict = field(default_factory=dict)
    check: object = None
    thresholds: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    table: list = field(default_factory=list)  # of the sampler: rows of text, the first its head

    def held(self):
        return all(threshold.held for threshold in self.thresholds)


def say(text):
    print(text, flush=True)


class Session:
    def __init__(self, asked, binary, k6, out, home):
        self.asked, self.binary, self.k6, self.out, self.home = asked, binary, k6, out, home
        self.running = {}  # what the scenario needs -> Deployment
        self.target = None if asked.target and asked.holding_target else deployed.Target()

    def stop(self):
        for deployment in self.running.values():
            deployment.stop()
        if self.target:
            self.target.stop()

    def deployment(self, scenario):
        """The given one, or one that is started, and kept for the next scenario that needs the like."""
        asked = self.asked
        kind = "given" if asked.fleet_env or asked.gateway else (scenario.needs, *scenario.env.items())
        if kind not in self.running:
            home = self.home / f"deployment-{len(self.running)}"
            home.mkdir()
            if asked.fleet_env:
                self.running[kind] = deployed.of_env(asked.fleet_env)
            elif asked.gateway:
                self.running[kind] = deployed.running(asked)
            else:
                say(f"starting {'`postern up`' if scenario.needs == 'up' else 'deploy/local/fleet'}")
                self.running[kind] = {
                    "up": lambda: deployed.start_up(self.binary, home),
                    "fleet": lambda: deployed.start_fleet(self.binary, home, env=scenario.env),
                    "store": lambda: deployed.start_fleet(self.binary, home, memcached=1, routers=1, env=scenario.env),
                }[scenario.needs]()
        found = self.running[kind]
        for needed in scenario.asks_for:
            if not getattr(found, needed):
                raise Failed(f"this scenario needs {needed}, and none is named")
        return found

    def run(self, name):
        scenario = SCENARIOS[name]
        minutes, rate = QUICK.get(name, (scenario.minutes, scenario.rate)) if self.asked.quick else (
            scenario.minutes, scenario.rate)
        minutes, rate = self.asked.minutes or minutes, self.asked.rate or rate
        say(f"\n== {name}: {scenario.question}")
        deployment = self.deployment(scenario)
        result = Result(name, scenario.question, deployment.described, minutes, rate)
        folder = self.out / name
        folder.mkdir()
        phases = scenario.phases(rate, minutes * 60)
        plan = self.plan(scenario, deployment, phases, folder)
        before = deployment.opened()
        sampler = Sampler(deployment, self.asked.sample, folder / "samples.csv") if scenario.sampled else None
        say(f"k6 for {minutes * 60:.0f} s on {deployment.described}: " + ", ".join(
            f"{phase.name} {phase.rate:.3g}/s" for phase in phases))
        try:
            k6 = K6(self.k6, scenario.script or name, plan, folder)
            if sampler:
                sampler.also = {"k6": k6.process.pid, "target": self.target.process.pid} if self.target else {"k6": k6.process.pid}
            k6.wait()
        finally:
            if sampler:
                sampler.stop()
        self.judge(scenario, deployment, result, k6, before)
        if sampler:
            self.judge_samples(deployment, result, sampler, folder)
        for threshold in result.thresholds:
            say(f"{'held  ' if threshold.held else 'BROKEN'} {threshold.name}: {threshold.found} ({threshold.bound})")
        return result

    def plan(self, scenario, deployment, phases, folder):
        """What the script is told; mints the tokens for it."""
        shares, first = {"spare": {"first": 0, "count": SPARE}}, SPARE
        for phase in phases:
            if phase.tokens:
                shares[phase.name] = {"first": first, "count": phase.token_count()}
                first += phase.token_count()
        tokens = self.asked.tokens
        if first > SPARE or scenario.asks_for == ("gateways",):
            if not tokens:
                tokens = self.home / f"{folder.name}.tokens"
                say(f"minting {first} tokens")
                deployed.mint(self.binary, deployment, first, tokens)
        return {
            "gateways": deployment.gateways, "agent": deployment.agent, "issuer": deployment.issuer,
            "target": self.asked.target or self.target.answering,
            "holding": self.asked.holding_target or self.target.holding,
            "tokens": str(tokens.resolve()), "shares": shares, "unexpected": scenario.unexpected,
            "phases": {phase.name: phase.options() for phase in phases},
            "seconds": max(phase.start + phase.seconds for phase in phases),
        }

    def judge(self, scenario, deployment, result, k6, before):
        metrics = k6.results()
        result.check, of_ledger = judge.by_ledger(k6.ledger)
        result.phases = judge.phases(k6.ledger)
        result.thresholds += [*judge.by_k6(metrics), of_ledger]
        if before is not None:
            result.thresholds.append(judge.admissions(result.check, before, deployment.opened(), deployment))
        dropped = metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)
        if dropped:
            result.notes.append(f"k6 had no free virtual user for {dropped} iterations, which were not started")

    # -- What a soak leaves behind

    def judge_samples(self, deployment, result, sampler, folder):
        say("waiting until nothing is open any more")
        result.thresholds += settled(deployment, sampler)
        result.table.append(("process", "start", "end", "most", "growth, 2nd half", "explained", "a day at that slope",
                             "fds start, most, end", "threads", "CPU"))
        for name in sampler.names():
            samples = sampler.of(name)
            if len(samples) < 4 or "rss" not in samples[0]:
                continue
            memory = Memory(samples)
            mib = lambda bytes: f"{bytes / (1 << 20):.1f} MiB"
            fds = [sample["fds"] for sample in samples]
            cpu = (samples[-1]["cpu"] - samples[0]["cpu"]) / (samples[-1]["seconds"] or 1)
            result.table.append((
                name, mib(memory.start), mib(memory.end), mib(memory.most), mib(memory.growth), mib(memory.explained),
                mib(memory.a_day), f"{fds[0]}, {max(fds)}, {fds[-1]}", str(samples[-1]["threads"]), f"{100 * cpu:.1f} %"))
            if name.startswith(("gateway", "issuer", "agent")):
                result.thresholds.append(judge.Held(
                    f"memory of {name} is flat in the second half",
                    f"{mib(memory.growth)} more, {mib(memory.explained)} of it by the cache of spent tokens",
                    f"at most {mib(memory.allowed)} unexplained", memory.flat))
        for number, _ in enumerate(deployment.memcached, 1):
            samples = sampler.of(f"store-{number}")
            result.notes.append(f"memcached {number}: {samples[0]['items']} items and {samples[0]['bytes']} bytes before, "
                                f"{samples[-1]['items']} and {samples[-1]['bytes']} after")
        if sampler.lost:
            result.notes.append(f"{sampler.lost} samples could not be taken")
        (folder / "samples.svg").write_text(svg(sampler, [row[0] for row in result.table[1:]]))
        gateways = {name: pid for name, pid in deployment.pids.items() if name.startswith("gateway")}
        if deployment.parent and gateways:
            say("draining the gateways")
            for name, (code, seconds) in drain.drain(gateways, deployment.parent).items():
                result.thresholds.append(judge.Held(
                    f"{name} drains on SIGTERM", f"exit code {code} after {seconds:.2f} s", "exit code 0", code == 0))


def settled(deployment, sampler, patience=90):
    """When traffic has ended: nothing open, and as many file descriptors as before. Waits for it, with a limit."""
    admins = deployment.all_admins()
    starts = {name: sampler.of(name)[0]["fds"] for name in admins if sampler.of(name)}
    deadline = time.monotonic() + patience
    while True:
        now = {name: sampler.daemon(name, url) for name, url in admins.items()}
        rows = []
        for name, sample in now.items():
            for gauge in ("tunnels", "connections"):
                if gauge in sample:
                    found = sample[gauge]
                    rows.append(judge.Held(f"{gauge} open at {name} after the run", f"{found:.0f}", "0", found == 0))
            if name in starts:
                held = sample["fds"] <= starts[name] + FDS_MORE
                rows.append(judge.Held(f"file descriptors of {name} after the run", f"{sample['fds']:.0f}",
                                       f"{starts[name]:.0f} before, and at most {FDS_MORE} more", held))
        if all(row.held for row in rows) or time.monotonic() > deadline:
            return rows
        time.sleep(0.5)



