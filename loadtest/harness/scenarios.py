"""The scenarios: the question of each, its phases, the tokens that they take, and its thresholds.

A phase is a scenario in k6's sense: a function of the script that k6 calls at a rate for some seconds.
"""

import math
from dataclasses import dataclass, field
from typing import Callable
from .during import Outage, Saturation

GRACE = "60s"  # k6 waits for iterations that run when a phase ends, so that every answer is in the ledger


def milliseconds(seconds):
    return f"{round(1000 * seconds)}ms"


@dataclass
class Phase:
    name: str
    function: str
    rate: float  # iterations a second
    seconds: float
    start: float = 0
    tokens: int = 1  # taken by an iteration
    users: int = 0  # virtual users; 0: enough for answers of half a second
    k6: dict = field(default_factory=dict)  # instead of a constant rate

    def token_count(self):
        # An arrival-rate executor may start one iteration more than rate times seconds.
        rate = self.rate if self.k6 else self.a_minute() / 60
        return self.tokens * (math.ceil(rate * self.seconds) + 2)

    def a_minute(self):
        """k6 takes whole numbers."""
        return max(1, round(self.rate * 60))

    def options(self):
        users = self.users or max(10, math.ceil(self.rate / 2))
        begin = {"startTime": milliseconds(self.start), "gracefulStop": GRACE, "exec": self.function}
        if self.k6:
            return begin | self.k6
        return begin | {
            "executor": "constant-arrival-rate", "rate": self.a_minute(), "timeUnit": "1m",
            "duration": milliseconds(self.seconds), "preAllocatedVUs": users, "maxVUs": 4 * users,
        }


@dataclass
class Scenario:
    question: str
    needs: str  # "up", "fleet" or "store" (a fleet of one memcached), when nothing is given
    minutes: float  # by default
    rate: float  # presentations or requests a second, by default
    phases: Callable  # of (rate, seconds)
    script: str = ""  # if it is not the name
    # The share of answers that may be of another class than the script allows: a store on a busy machine sometimes
    # misses its 100 ms, and the gateway then answers 503.
    unexpected: float = 0.001
    requires: tuple = ("gateways",)  # what a given deployment must have
    env: dict = field(default_factory=dict)  # of a fleet that is started for it
    compared: str = ""  # the phase whose p95 and p99 may be RATIO times those of the phase "baseline"
    must_see: tuple = ()  # classes of answers without which the run has tested nothing
    during: type | None = None  # the runner's action meanwhile
    sampled: bool = False


# Concurrent token requests in the flood: more than the queue of the issuer of FLOODED holds, and than a default one.
FLOODED = {"POSTERN_SIGNING_THREADS": "1", "POSTERN_SIGNING_QUEUE": "16"}
BURST, BURST_OF_GIVEN = 64, 400

RATIO = 5
# Below this a ratio measures the machine rather than Postern, because k6, the target and Postern share its cores. It
# is half of the time that a gateway waits for the store by default.
RATIO_FROM_MS = 50


def steady(rate, seconds):
    return [Phase("load", "default", rate, seconds)]


def loaded(tokens=1, quiet=10):
    """A third of the time at a low rate, which is the baseline, and then the requested rate."""
    def phases(rate, seconds):
        return [Phase("baseline", "default", min(quiet, rate / 2), seconds / 3, tokens=tokens),
                Phase("loaded", "default", rate, seconds * 2 / 3, start=seconds / 3, tokens=tokens)]
    return phases


def replays(rate, seconds):
    """A token is presented four times at once and once to each gateway afterwards: five or six times."""
    return [Phase("load", "default", rate / 6, seconds, users=30)]


def ramp(rate, seconds):
    stages = [{"target": round(rate), "duration": milliseconds(seconds)}]
    users = {"preAllocatedVUs": 100, "maxVUs": 600}
    return [Phase("ramp", "default", rate / 2 + 20, seconds, k6={
        "executor": "ramping-arrival-rate", "startRate": 20, "timeUnit": "1s", "stages": stages, **users})]


def flood(rate, seconds):
    """Tunnels at a constant rate, and bursts of token requests beside them after a third of the time."""
    third = seconds / 3
    return [Phase("baseline", "fresh", rate, third), Phase("loaded", "fresh", rate, 2 * third, start=third),
            Phase("flood", "burst", 4, 2 * third, start=third, tokens=0)]


def soak(rate, seconds):
    """5 % of the presentations are replays, 1 % garbage, 15 % go by the agent."""
    races = rate * 0.05 / 2  # three presentations each, two of which are replays
    share = {"garbage": rate * 0.01, "held": 1, "agent": rate * 0.15}
    fresh = rate - sum(share.values()) - 3 * races
    return [
        Phase("fresh", "fresh", fresh, seconds),
        Phase("replays", "replays", races, seconds),
        Phase("garbage", "garbage", share["garbage"], seconds, tokens=0),
        Phase("held", "held", share["held"], seconds),
        Phase("agent", "throughAgent", share["agent"], seconds, tokens=0),
    ]


SCENARIOS = {
    "raw": Scenario(
        "Is every good token admitted, at one gateway or several, and how long does the answer take?",
        "fleet", 1, 100, loaded(), compared="loaded"),
    "agent": Scenario(
        "Does every tunnel through the agent open, while it mints the tokens it spends?",
        "fleet", 1, 50, loaded(tokens=0), requires=("gateways", "agent"), compared="loaded"),
    "replays": Scenario(
        "Of many presentations of one token, at once and afterwards, at all gateways: is exactly one admitted?",
        "fleet", 1, 120, replays),
    "mix": Scenario(
        "98 % good tokens, 1 % replays, 1 % garbage of every class: does each get the answer it must?",
        "fleet", 1, 100, steady, must_see=("admitted", "spent", "challenged", "400", "431")),
    "issuance": Scenario(
        "Is every valid token request signed, and how long does it take?",
        "fleet", 1, 100, loaded(tokens=0), requires=("gateways", "issuer"), compared="loaded"),
    "flood": Scenario(
        "More token requests at once than the issuer takes: does it shed them, and do tunnels open meanwhile?",
        "fleet", 1, 30, flood, requires=("gateways", "issuer"), compared="loaded", must_see=("issued", "busy"),
        env=FLOODED),
    "outage": Scenario(
        "The store is frozen and comes back: is nothing admitted in doubt, and does everything work again?",
        "store", 1, 60, steady, requires=("gateways", "memcached"), must_see=("admitted", "busy"), during=Outage),
    "ramp": Scenario(
        "How many tunnels a second open before they take too long or are refused?",
        "fleet", 1, 1500, ramp, script="raw", unexpected=1, during=Saturation),
    "soak": Scenario(
        "Does anything grow that should not in an hour of everything, and is any token admitted twice?",
        "fleet", 60, 50, soak, unexpected=0.01, requires=("gateways", "agent"), sampled=True),
}

# What --quick runs: name -> what it needs, minutes, rate.
QUICK = {"replays": ("up", 0.12, 60), "mix": ("up", 0.17, 120), "raw": ("up", 0.12, 60), "outage": ("store", 0.25, 40)}
