"""How much of the machine other programs took during a run: on a machine that is busy with them, latency is theirs."""

import resource
from .sampler import TICKS, of_process

# In the first line of /proc/stat, after its name: user, nice, system, idle, iowait, irq, softirq, steal, guest...
IDLE, IOWAIT, ACCOUNTED = 3, 4, 8


class Others:
    """From when it is made until `share` is asked."""

    def __init__(self, pids):
        self.pids = list(pids)
        self.began = self._now()

    def _now(self):
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1 : 1 + ACCOUNTED]]
        whole = sum(ticks) / TICKS
        busy = whole - (ticks[IDLE] + ticks[IOWAIT]) / TICKS
        # What was started and has ended since is k6; the others run on.
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(each.ru_utime + each.ru_stime for each in usage)
        for pid in self.pids:
            try:
                own += of_process(pid)["cpu"]
            except (OSError, KeyError):
                pass  # it has ended
        return whole, busy, own

    def share(self):
        """Of the machine's CPU, from 0 to 1."""
        whole, busy, own = (now - before for now, before in zip(self._now(), self.began))
        return max(0.0, busy - own) / whole if whole else 0.0
