"""The ledger of a run, and its check.

k6/lib/answers.js writes a line for each answer: Unix ms of the request, phase, kind, token (its index, - for none),
daemon (g0, g1… or agent or issuer), status, class, ms to the answer.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

# After one of these it is unknown whether the token was spent.
NO_VERDICT = ("busy", "busy-without-retry-after", "no-answer", "502", "504")
SHOWN = 5  # examples of each fault


class Line(NamedTuple):
    began: int
    phase: str
    kind: str
    token: int | None
    daemon: str
    status: int
    answer: str
    waiting: float

    @classmethod
    def read(cls, text):
        began, phase, kind, token, daemon, status, answer, waiting = text.split()
        token = None if token == "-" else int(token)
        return cls(int(began), phase, kind, token, daemon, int(status), answer, float(waiting))


def lines(path):
    """All lines; ValueError names the first that cannot be read."""
    with open(path) as file:
        for number, text in enumerate(file, 1):
            try:
                yield Line.read(text)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None


class Check:
    """The check of a history of answers. `faults` is empty when the history is correct."""

    def __init__(self, history):
        self.presentations = 0  # of tokens and of garbage, at gateways
        self.admissions = 0  # of tokens of the file
        self.by_agent = Counter()  # answers to tunnels through the agent, which presents its own tokens
        self.issuance = Counter()
        self.replays_refused = 0
        self.answers = defaultdict(Counter)  # of each kind
        self.faults = []
        self._counted = Counter()
        tokens = {}  # index -> [admissions, spent, no verdict]
        for line in history:
            self.answers[line.kind][line.answer] += 1
            if line.daemon == "issuer":
                self.issuance[line.answer] += 1
            elif line.daemon == "agent":
                self.by_agent[line.answer] += 1
            else:
                self._gateway(line, tokens)
        for token, (admitted, spent, unknown) in tokens.items():
            if admitted > 1:
                self._fault("admitted more than once", f"token {token} was admitted {admitted} times")
            if admitted == 0 and spent and not unknown:
                self._fault("refused, never admitted", f"token {token} was refused as spent, and never admitted")
        self.tokens = len(tokens)
        if not any(self.answers.values()):
            self.faults.append("the ledger is empty")
        for kind, count in self._counted.items():
            if count > SHOWN:
                self.faults.append(f"... {kind}: {count} in all")

    def _gateway(self, line, tokens):
        self.presentations += 1
        admitted = line.answer == "admitted"
        if line.token is None:
            if admitted:
                self._fault("garbage admitted", f"{line.kind} was admitted by {line.daemon}")
            return
        seen = tokens.setdefault(line.token, [0, 0, 0])
        if admitted:
            self.admissions += 1
            seen[0] += 1
        elif line.answer == "spent":
            seen[1] += 1
        elif line.answer in NO_VERDICT:
            seen[2] += 1
        if line.kind == "replay":
            if admitted:
                self._fault("replay admitted", f"token {line.token}, spent before, was admitted by {line.daemon}")
            else:
                self.replays_refused += 1
        elif line.kind == "race" and not admitted:
            self.replays_refused += 1

    def _fault(self, kind, text):
        self._counted[kind] += 1
        if self._counted[kind] <= SHOWN:
            self.faults.append(text)

    def statement(self):
        yield f"{self.presentations} presentations at gateways, {self.tokens} tokens, {self.admissions} admissions"
        yield f"{self.replays_refused} replays refused"
        if self.by_agent:
            yield "by the agent: " + counts(self.by_agent)
        if self.issuance:
            yield "issuance: " + counts(self.issuance)
        for kind in sorted(self.answers):
            yield f"  {kind:24} {counts(self.answers[kind])}"
        for fault in self.faults:
            yield f"FAULT: {fault}"
        if not self.faults:
            yield "no token was admitted twice, no replay and no garbage at all"


def counts(counter):
    return ", ".join(f"{answer} {count}" for answer, count in Counter(counter).most_common()) or "none"


def percentile(values, share):
    """The smallest of the sorted values that at least `share` per cent of them do not exceed."""
    return values[max(0, -(-len(values) * share // 100) - 1)] if values else float("nan")


# ---- Forged histories -----------------------------------------------------------------------------------------------

GOOD = """
1000 fresh fresh 0 g0 200 admitted 1.0
1001 replays race 1 g0 200 admitted 1.0
1001 replays race 1 g1 407 spent 1.0
1002 replays replay 0 g1 407 spent 1.0
1003 garbage garbage:bad-signature - g0 407 challenged 1.0
1004 outage fresh 2 g0 503 busy 100.0
1005 outage again 2 g0 407 spent 1.0
1006 outage fresh 3 g0 503 busy 100.0
1007 outage again 3 g1 200 admitted 1.0
1008 agent agent - agent 200 admitted 1.0
1009 issue issue - issuer 200 issued 1.0
"""
FORGED = {
    "a token admitted by two gateways": (GOOD + "1010 fresh fresh 0 g1 200 admitted 1.0\n", "admitted 2 times"),
    "a race that both win": (GOOD.replace("race 1 g1 407 spent", "race 1 g1 200 admitted"), "admitted 2 times"),
    "a replay admitted, its first admission unseen":
        (GOOD + "1010 replays replay 9 g0 200 admitted 1.0\n", "spent before"),
    "garbage admitted": (GOOD.replace("- g0 407 challenged", "- g0 200 admitted"), "garbage:bad-signature"),
    "admitted again after the outage":
        (GOOD + "1010 outage again 3 g0 200 admitted 1.0\n", "admitted 2 times"),
    "a good token refused as spent": (GOOD.replace("0 g0 200 admitted", "0 g0 407 spent"), "never admitted"),
    "nothing at all": ("", "empty"),
}


def self_test():
    """Raises AssertionError when a forged history passes, or a correct one does not."""
    check = lambda text: Check(Line.read(line) for line in text.splitlines() if line)
    good = check(GOOD)
    assert not good.faults, good.faults
    assert (good.presentations, good.admissions, good.replays_refused) == (9, 3, 2), vars(good)
    for name, (history, expected) in FORGED.items():
        faults = check(history).faults
        assert any(expected in fault for fault in faults), f"{name} is not caught: {faults}"
    try:
        Line.read("1000 fresh fresh 0 g0 200 admitted")
    except ValueError:
        return
    raise AssertionError("a truncated line is accepted")
