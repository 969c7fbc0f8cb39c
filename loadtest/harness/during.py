"""Actions while k6 runs, and their thresholds: an outage of the store, or the search for the point at which the
gateways saturate."""

import os, signal, threading, time
from collections import defaultdict
from . import ledger as ledgers
from .judge import Held


class Outage:
    """Freezes every memcached for the second quarter: commands get no reply, and the records stay.

    Killing memcached would lose its records too, and void the tokens that are out: see
    docs/how-it-works/spend-contract.md. This scenario tests only a store that does not answer.
    """

    # From freezing to the last verdict in flight, and from thawing to the first: connections are made anew.
    EDGE = 1.0
    BACK_WITHIN = 10.0

    def __init__(self, k6, deployment, seconds, quick):
        self.k6, self.pids, self.quarter, self.quick = k6, deployment.memcached_pids(), seconds / 4, quick
        self.frozen = self.thawed = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not (self.k6.ledger.exists() and self.k6.ledger.stat().st_size):
            if self._stop.wait(0.05):
                return
        if self._stop.wait(self.quarter):
            return
        self._signal(signal.SIGSTOP)
        self.frozen = time.time()
        self._stop.wait(self.quarter)
        self._signal(signal.SIGCONT)
        self.thawed = time.time()

    def _signal(self, number):
        for pid in self.pids:
            os.kill(pid, number)

    def stop(self):
        self._stop.set()
        self._thread.join()

    def judge(self, result):
        if not self.thawed:
            yield Held("the store was frozen and thawed", "no", "yes", False)
            return
        during, after = defaultdict(int), []
        for line in ledgers.lines(self.k6.ledger):
            if line.kind not in ("fresh", "again"):
                continue
            at = line.began / 1000
            if self.frozen + self.EDGE <= at < self.thawed - self.EDGE:
                during[line.answer] += 1
            elif at >= self.thawed and line.kind == "fresh":
                after.append((at, line.answer))
        yield Held("tokens while the store was frozen", ledgers.counts(during), "some, and none admitted",
                   sum(during.values()) > 0 and not during["admitted"])
        after.sort()
        back = next((at for at, answer in after if answer == "admitted"), None)
        found = "never" if back is None else f"{back - self.thawed:.2f} s after it answered again"
        yield Held("the first admission after it", found, f"within {self.BACK_WITHIN:.0f} s",
                   back is not None and back - self.thawed <= self.BACK_WITHIN)
        if self.quick:  # on a machine with other load any reply of the store may be late
            return
        late = [answer for at, answer in after if back and at >= back + self.EDGE]
        busy = sum(answer != "admitted" for answer in late)
        yield Held(f"refusals later than {self.EDGE:.0f} s after that", f"{busy} of {len(late)}",
                   "some requests, at most 1 %", bool(late) and busy <= len(late) / 100)


class Saturation:
    """Follows the ledger of a ramp, and ends the ramp when a budget is broken in two consecutive seconds."""

    P99_MS = 250
    REFUSED = 0.01
    FLOOR = 100  # tunnels a second that must keep the budgets

    def __init__(self, k6, _deployment, _seconds, _quick):
        self.k6 = k6
        self.broke = None
        self.held = 0  # answers a second in the best second within the budgets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        seconds, judged, position, broken_before = defaultdict(list), 0, 0, False
        while not self._stop.wait(0.5):
            if not self.k6.ledger.exists():
                continue
            with open(self.k6.ledger, "rb") as file:
                file.seek(position)
                got = file.read()
            whole = got[: got.rfind(b"\n") + 1]
            position += len(whole)
            for text in whole.decode().splitlines():
                line = ledgers.Line.read(text)
                seconds[line.began // 1000].append(line)
            # A second is judged 3 s later, when all answers are in but those far beyond the budget.
            for second in sorted(each for each in seconds if judged < each < time.time() - 3):
                judged = second
                why = self.broken(seconds[second])
                if why and broken_before:
                    self.broke = f"{len(seconds[second])} tunnels/s: {why}"
                    self.k6.process.send_signal(signal.SIGINT)
                    return
                if not why:
                    self.held = max(self.held, len(seconds[second]))
                broken_before = bool(why)

    def broken(self, lines):
        waits = sorted(line.waiting for line in lines)
        refused = sum(line.answer != "admitted" for line in lines)
        p99 = ledgers.percentile(waits, 99)
        if p99 > self.P99_MS:
            return f"p99 {p99:.0f} ms"
        if refused > self.REFUSED * len(lines):
            return f"{refused} refused"
        return None

    def stop(self):
        self._stop.set()
        self._thread.join()

    def judge(self, result):
        budgets = f"p99 {self.P99_MS} ms, {100 * self.REFUSED:.0f} % refused"
        result.notes.append(f"Budgets ({budgets}) broken at {self.broke}." if self.broke else
                            f"The budgets ({budgets}) held to the end of the ramp: it did not reach saturation.")
        yield Held("tunnels a second within the budgets", f"{self.held}", f"at least {self.FLOOR}",
                   self.held >= self.FLOOR)
