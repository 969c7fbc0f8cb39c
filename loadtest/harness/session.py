"""A run from its first to its last scenario: starts the deployments, runs k6, and judges each scenario."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from rig import Failed
from . import aftermath, judge
from . import deployment as deployed
from .k6 import INTERRUPTED, K6, THRESHOLDS
from .others import Others
from .sampler import Sampler
from .scenarios import BURST, BURST_OF_GIVEN, QUICK, RATIO, RATIO_FROM_MS, SCENARIOS

SPARE = 1  # tokens from which garbage is made


@dataclass
class Result:
    """The result of one scenario."""

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
        """Whether all thresholds held."""
        return all(threshold.held for threshold in self.thresholds)


def log(text):
    print(text, flush=True)


class Session:
    def __init__(self, options, k6, out, home):
        self.options, self.k6, self.out, self.home = options, k6, out, home
        self.running = {}  # what the scenario needs -> Deployment
        self.target = None if options.target and options.holding_target else deployed.Target()

    def stop(self):
        for deployment in self.running.values():
            deployment.stop()
        if self.target:
            self.target.stop()

    def deployment(self, scenario):
        """The given one, or one that is started and kept for the next scenario with the same needs."""
        options = self.options
        kind = "given" if options.fleet_env or options.gateway else (scenario.needs, *scenario.env.items())
        if kind not in self.running:
            home = Path(tempfile.mkdtemp(dir=self.home))
            if options.fleet_env:
                self.running[kind] = deployed.of_env(options.fleet_env)
            elif options.gateway:
                self.running[kind] = deployed.running(options)
            else:
                log(f"starting {'`postern up`' if scenario.needs == 'up' else 'deploy/local/fleet'}")
                self.running[kind] = {
                    "up": lambda: deployed.start_up(home),
                    "fleet": lambda: deployed.start_fleet(home, env=scenario.env),
                    "store": lambda: deployed.start_fleet(home, memcached=1, routers=1, env=scenario.env),
                }[scenario.needs]()
        found = self.running[kind]
        for needed in scenario.requires:
            if not getattr(found, needed):
                raise Failed(f"this scenario needs {needed}, and none is given")
        return found

    def run(self, name):
        scenario = SCENARIOS[name]
        if self.options.quick and name in QUICK:
            needs, minutes, rate = QUICK[name]
            scenario = replace(scenario, needs=needs, minutes=minutes, rate=rate)
        minutes, rate = self.options.minutes or scenario.minutes, self.options.rate or scenario.rate
        log(f"\n== {name}: {scenario.question}")
        deployment = self.deployment(scenario)
        result = Result(name, scenario.question, deployment.described, minutes, rate)
        folder = self.out / name
        folder.mkdir()
        phases = scenario.phases(rate, minutes * 60)
        plan = self.plan(scenario, deployment, phases, folder)
        before = deployment.opened()
        sampler = Sampler(deployment, self.options.sample, folder / "samples.csv") if scenario.sampled else None
        log(f"k6 for {plan['seconds']:.0f} s on {deployment.described}: " + ", ".join(
            f"{phase.name} {phase.rate:.3g}/s" for phase in phases))
        during, own = None, [*deployment.pids.values(), *([self.target.process.pid] if self.target else [])]
        others = Others(own)
        k6 = K6(self.k6, scenario.script or name, plan, folder)
        try:
            if sampler:
                sampler.also = {"k6": k6.process.pid} | ({"target": self.target.process.pid} if self.target else {})
            if scenario.during:
                during = scenario.during(k6, deployment, plan["seconds"], self.options.quick)
            k6.wait((0, THRESHOLDS, INTERRUPTED) if during else (0, THRESHOLDS))
        finally:
            for started in (during, sampler):
                if started:
                    started.stop()
            k6.end()
        result.notes.append(f"Other programs took {100 * others.share():.0f} % of the machine's CPU meanwhile.")
        self.judge(scenario, deployment, result, k6, before, during)
        if sampler:
            aftermath.judge(deployment, result, sampler, folder, log)
            self.running = {kind: each for kind, each in self.running.items() if each is not deployment}
            deployment.stop()  # its gateways have been drained
        for held in result.thresholds:
            log(f"{'held  ' if held.held else 'BROKEN'} {held.name}: {held.found} ({held.bound})")
        for note in result.notes:
            log(note)
        return result

    def plan(self, scenario, deployment, phases, folder):
        """The script's input; mints the tokens for it."""
        shares, first = {"spare": {"first": 0, "count": SPARE}}, SPARE
        for phase in phases:
            if phase.tokens:
                shares[phase.name] = {"first": first, "count": phase.token_count()}
                first += phase.token_count()
        tokens = self.options.tokens
        if not tokens:
            tokens = self.home / f"{folder.name}.tokens"
            log(f"minting {first} tokens")
            deployed.mint(deployment, first, tokens)
        with open(tokens) as file:
            there = sum(1 for _ in file)
        if there < first:
            raise Failed(f"{tokens} has {there} tokens, and {first} are needed")
        return {
            "gateways": deployment.gateways, "agent": deployment.agent, "issuer": deployment.issuer,
            "target": self.options.target or self.target.answering,
            "holding": self.options.holding_target or self.target.holding,
            "tokens": str(tokens.resolve()), "shares": shares,
            "burst": BURST if deployment.alone else BURST_OF_GIVEN, "unexpected": scenario.unexpected,
            "phases": {phase.name: phase.options() for phase in phases},
            "seconds": max(phase.start + phase.seconds for phase in phases),
        }

    def judge(self, scenario, deployment, result, k6, before, during):
        metrics = k6.results()
        result.check, of_ledger = judge.by_ledger(k6.ledger)
        result.phases = judge.phases(k6.ledger)
        result.thresholds += [*judge.by_k6(metrics), of_ledger, *judge.seen(result.check, scenario.must_see)]
        if before is not None:
            # An interrupted k6 does not wait for outstanding answers.
            exact = deployment.alone and k6.process.returncode != INTERRUPTED
            result.thresholds.append(judge.admissions(result.check, deployment.opened() - before, exact))
        if scenario.compared:
            ratios = list(judge.ratios(result.phases, scenario.compared, RATIO, RATIO_FROM_MS))
            if self.options.quick:  # too few answers, on a machine with other load
                result.notes += [f"Not judged: {held.name} {held.found}" for held in ratios]
            else:
                result.thresholds += ratios
        if during:
            result.thresholds += during.judge(result)
        dropped = metrics.get("dropped_iterations", {}).get("values", {}).get("count", 0)
        if dropped:
            result.notes.append(f"k6 had no free virtual user for {dropped} iterations, which were not started.")
