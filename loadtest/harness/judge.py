"""What a run is held to: k6's own thresholds, the ledger's, and those that compare."""

from collections import defaultdict
from typing import NamedTuple
from . import ledger as ledgers


class Held(NamedTuple):
    """A threshold, and whether it held."""

    name: str
    found: str
    bound: str
    held: bool


def by_k6(metrics):
    """The thresholds of the script, as k6 judged them."""
    for name, metric in sorted(metrics.items()):
        for bound, verdict in metric.get("thresholds", {}).items():
            values = metric["values"]
            found = values.get("count", values.get("rate", 0)) if "count" in bound else values.get("rate", 0)
            if name == "unexpected_answers":
                found = f"{values.get('passes', 0)} of {values.get('passes', 0) + values.get('fails', 0)}"
            yield Held(name, str(found), bound, verdict["ok"])


def by_ledger(path):
    """The check of the whole history, and the history itself."""
    check = ledgers.Check(ledgers.lines(path))
    faults = "; ".join(check.faults) or "no fault"
    return check, Held("loadtest/check on the ledger", faults, "no fault", not check.faults)


def admissions(check, opened_before, opened_after, deployment):
    """Every tunnel that the gateways opened is one that a client saw opened."""
    opened = opened_after - opened_before
    seen = check.admissions + check.by_agent["admitted"]
    return Held("tunnels opened, by the gateways' own count", f"{opened:.0f}, and {seen} in the ledger",
                "equal" if deployment.alone else "at least as many", opened == seen if deployment.alone else opened >= seen)


class Phase:
    """The times and answers of one phase."""

    def __init__(self):
        self.waiting = defaultdict(list)  # class of answer -> ms
        self.first = self.last = None

    def add(self, line):
        self.first = line.began if self.first is None else min(self.first, line.began)
        self.last = line.began if self.last is None else max(self.last, line.began)
        self.waiting[line.answer].append(line.waiting)

    def count(self):
        return sum(map(len, self.waiting.values()))

    def rate(self):
        return self.count() / max(1e-3, (self.last - self.first) / 1000)

    def percentiles(self, answers=("admitted", "issued")):
        values = sorted(ms for answer in answers for ms in self.waiting.get(answer, ()))
        return [ledgers.percentile(values, share) for share in (50, 95, 99)]


def phases(path):
    found = defaultdict(Phase)
    for line in ledgers.lines(path):
        found[line.phase].add(line)
    return dict(found)
