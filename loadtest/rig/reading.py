"""Reads resource use and statistics of processes, from /proc and from their own metrics."""

import os, re, resource, signal, subprocess, time as clock
from typing import NamedTuple
from . import Failed
from .binaries import needed
from .net import PATIENCE, connect, get


def cpu(pid):
    """Seconds that all threads of a process have been on a CPU, those that have ended included, user and kernel
    together: what clock_getcpuclockid gives, to the nanosecond."""
    return clock.clock_gettime((~pid << 3) | 2)


def descendants(root):
    """The process and all below it."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid)
    return found


def resident(pid):
    """Bytes in memory: `VmRSS`."""
    with open(f"/proc/{pid}/status") as file:
        found = re.search(r"VmRSS:\s+(\d+) kB", file.read())
    if not found:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found.group(1)) * 1024


def memory(pids):
    """KiB of these processes: all that is resident (`rss`), and the part that is no page of a file (`own`; a page that
    several share counts once). The counted share of a file's pages depends on other processes of the same program."""
    rss = own = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            kib = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB", file.read(), re.M)}
        rss += kib["Rss"]
        own += kib["Pss_Anon"] + kib["Pss_Shmem"]
    return {"rss": rss, "own": own}


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


class Machine(NamedTuple):
    """Seconds of all cores: in all, busy, and stolen by the hypervisor."""

    whole: float
    busy: float
    stolen: float


def machine():
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    user, nice, system, _idle, _wait, irq, softirq, stolen = (each / os.sysconf("SC_CLK_TCK") for each in ticks)
    return Machine(sum(ticks) / os.sysconf("SC_CLK_TCK"), user + nice + system + irq + softirq, stolen)


def own_cpu():
    """Seconds of this process and of the programs that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def load_average():
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def memcached_stats(address):
    with connect(address) as stream:
        stream.sendall(b"stats\r\n")
        lines = stream.makefile("rb")
        stats = {}
        while (line := lines.readline().split()) != [b"END"]:
            if not line:
                raise ConnectionError(f"memcached at {address} closed the connection")
            stats[line[1].decode()] = line[2].decode()
    return stats


def metrics(admin):
    return get(f"http://{admin}/metrics")


class Used:
    """CPU of named groups of processes from its construction to `read`."""

    def __init__(self, groups):
        self.groups = groups
        self.before = {name: [cpu(pid) for pid in pids] for name, pids in groups.items()}

    def read(self):
        """Seconds, by name and process."""
        return {
            name: [cpu(pid) - before for pid, before in zip(pids, self.before[name])]
            for name, pids in self.groups.items()
        }


def system_calls(pids, work, folder):
    """The number of each system call of processes during `work`: in a separate run, because strace slows them down."""
    counts, log = os.path.join(folder, "strace.counts"), os.path.join(folder, "strace.log")
    command = [needed("strace"), "-f", "-c", "-o", counts]
    for pid in pids:
        command += ["-p", str(pid)]
    with open(log, "w") as stderr:
        strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)
    try:
        began = clock.monotonic()
        while len(re.findall(r"Process \d+ attached", read(log))) < len(pids):
            if strace.poll() is not None or clock.monotonic() - began > PATIENCE:
                raise Failed(f"strace may not attach here: {read(log)}")
            clock.sleep(0.02)
        work()
    finally:
        if strace.poll() is None:
            strace.send_signal(signal.SIGINT)
        strace.wait()
    rows = [line.split() for line in read(counts).splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}


def read(path):
    with open(path) as file:
        return file.read()
