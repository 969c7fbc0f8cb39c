"""The CPU that other programs took during a run: on a busy machine they determine the latency."""

from rig import reading


class Others:
    """Measures from its construction to the call of `share`."""

    def __init__(self, pids):
        self.pids = list(pids)
        self.began = self._now()

    def _now(self):
        machine = reading.machine()
        own = reading.own_cpu()  # of the processes started here only k6 has ended; the others still run
        for pid in self.pids:
            try:
                own += reading.cpu(pid)
            except OSError:
                pass  # it has ended
        return machine.whole, machine.busy + machine.stolen, own

    def share(self):
        """Of the machine's CPU, from 0 to 1."""
        whole, busy, own = (now - before for now, before in zip(self._now(), self.began))
        return max(0.0, busy - own) / whole if whole else 0.0
