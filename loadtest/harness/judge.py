"""The thresholds of a run: k6's own, the ledger's, and those that compare phases."""

from collections import defaultdict
from typing import NamedTuple
from . import ledger as ledgers


# The baseline needs this number of answers for a percentile to be more than its largest few values.
ENOUGH = {95: 20, 99: 200}


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
    return check, Held("loadtest/run check on the ledger", faults, "no fault", not check.faults)


def admissions(check, opened, exact):
    """The gateways opened as many tunnels as the clients saw opened, if no other client uses them."""
    seen = check.admissions + check.by_agent["admitted"]
    return Held("tunnels opened, by the gateways' own count", f"{opened:.0f}, and {seen} in the ledger",
                "equal" if exact else "at least as many", opened == seen if exact else opened >= seen)


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


def ratios(found, compared, limit, from_ms):
    """p95 and p99 of a phase beside those of the run's own baseline, on the same machine in the same minute; a p99 only
    if the baseline has enough answers."""
    if "baseline" not in found or compared not in found:
        yield Held(f"{compared} beside baseline", "one of them has no answers", "both have", False)
        return
    quiet, busy = found["baseline"], found[compared]
    for nth, share in enumerate((50, 95, 99)):
        if share == 50 or quiet.count() < ENOUGH[share]:
            continue
        before, after = quiet.percentiles()[nth], busy.percentiles()[nth]
        yield Held(f"p{share} of {compared} beside baseline",
                   f"{after:.2f} ms beside {before:.2f} ms, {after / before:.1f} times",
                   f"at most {limit} times, or {from_ms} ms", after <= max(limit * before, from_ms))


def seen(check, classes):
    """Whether the run saw every class of answers that it tests."""
    if not classes:
        return
    answers = {answer for counter in check.answers.values() for answer in counter}
    missing = [wanted for wanted in classes if wanted not in answers]
    yield Held("answers that must be seen", "none of " + ", ".join(missing) if missing else "all", ", ".join(classes),
               not missing)
