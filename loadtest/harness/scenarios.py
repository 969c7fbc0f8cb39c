"""The scenarios: what each asks, of which phases it is made, how many tokens those take, and what must hold.

A phase is a scenario in k6's sense: a function of the script, called at a rate for some seconds.
"""

import math
from dataclasses import dataclass, field
from typing import Callable

GRACE = "60s"  # iterations that run when a phase ends are awaited, so that every answer is in the ledger


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
        # An arrival-rate executor may start one more than rate times seconds says.
        return self.tokens * (math.ceil(self.rate * self.seconds) + 2)

    def options(self):
        users = self.users or max(10, math.ceil(self.rate / 2))
        begin = {"startTime": f"{self.start:.0f}s", "gracefulStop": GRACE, "exec": self.function}
        if self.k6:
            return begin | self.k6
        return begin | {
            "executor": "constant-arrival-rate", "rate": max(1, round(self.rate * 60)), "timeUnit": "1m",
            "duration": f"{self.seconds:.0f}s", "preAllocatedVUs": users, "maxVUs": 4 * users,
        }


@dataclass
class Scenario:
    question: str
    needs: str  # "up", "fleet" or "store" (a fleet of one memcached), when nothing is given
    minutes: float  # by default
    rate: float  # presentations a second, by default
    phases: Callable  # of (rate, seconds)
    unexpected: float = 0.0  # share of answers that may be of another class than the script allows
    asks_for: tuple = ("gateways",)  # what a given deployment must have
    env: dict = field(default_factory=dict)  # of a fleet that is started for it
    sampled: bool = False
    script: str = ""  # where it is not the name


def soak(rate, seconds):
    """5 % of the presentations are replays, 1 % garbage, 15 % go by the agent."""
    races = rate * 0.05 / 2  # three presentations each, two of which are replays
    share = {"garbage": rate * 0.01, "held": 1, "agent": rate * 0.15}
    fresh = rate - sum(share.values()) - 3 * races
    return [
        Phase("fresh", "fresh", fresh, seconds),
        Phase("replays", "replays", races, seconds),
        Phase("garbage", "garbage", share["garbage"], seconds, tokens=0),
        Phase("held", "held", share["held"], seconds, users=8),
        Phase("agent", "throughAgent", share["agent"], seconds, tokens=0),
    ]


SCENARIOS = {
    "soak": Scenario(
        "Does anything grow that should not in an hour of everything, and is any token admitted twice?",
        "fleet", 60, 50, soak, unexpected=0.01, asks_for=("gateways", "agent"), sampled=True),
}

QUICK = {}  # name -> (minutes, rate)
