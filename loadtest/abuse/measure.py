"""What an attack costs the attacked: CPU for each refusal, memory for each connection held."""

import time
from rig import reading


class Held:
    """Memory and descriptors of a process since its construction."""

    def __init__(self, pid):
        self.pid, self.memory, self.files = pid, reading.resident(pid), reading.descriptors(pid)

    def count(self):
        return reading.descriptors(self.pid) - self.files

    def wait(self, number, patience=10):
        """Until the process has `number` more descriptors, or no more come."""
        until = time.monotonic() + patience
        while self.count() < number and time.monotonic() < until:
            time.sleep(0.05)
        return self.count()

    def each(self):
        """Bytes for each further descriptor; None while there is none."""
        count = self.count()
        return (reading.resident(self.pid) - self.memory) / count if count > 0 else None


class Cpu:
    """Seconds of CPU of a process since its construction."""

    def __init__(self, pid):
        self.pid, self.before = pid, reading.cpu(pid)

    def spent(self):
        return reading.cpu(self.pid) - self.before
