"""How much of the machine other programs took during a run: on a machine that is busy with them, latency is theirs."""

from rig import reading


class Others:
    """From when it is made until `share` is asked."""

    def __init__(self, pids):
        self.pids = list(pids)
        self.began = self._now()

    def _now(self):
        machine = reading.machine()
        own = reading.own_cpu()  # what was started and has ended since is k6; the others run on
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
