"""What processes used and what they say of themselves."""

import math, os, re, shutil, signal, statistics, subprocess, sys, urllib.request
from .programs import connect
from .units import time

BUCKET = re.compile(r"^(\w+)_bucket\{(.*)\} (\S+)$", re.M)


def cpu(pid):
    """Seconds on a CPU of all threads of a process, user and kernel."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def resident(pid):
    """Bytes in memory: `VmRSS`."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) * 1024


def load_average():
    with open("/proc/loadavg") as file:
        return " ".join(file.read().split()[:3])


def memcached_stats(address):
    with connect(address) as stream:
        stream.sendall(b"stats\r\n")
        lines = stream.makefile("rb")
        stats = {}
        while (line := lines.readline().split()) != [b"END"]:
            stats[line[1].decode()] = line[2].decode()
    return stats


def metrics(admin):
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=60) as answer:
        return answer.read().decode()


def buckets(text, name, **labels):
    """A histogram of `text` as {upper bound: how many are at or below}, over all series that have these labels."""
    total = {}
    for found, rest, value in BUCKET.findall(text):
        if found != name or any(f'{key}="{want}"' not in rest for key, want in labels.items()):
            continue
        bound = re.search(r'le="([^"]+)"', rest).group(1)
        bound = math.inf if bound == "+Inf" else float(bound)
        total[bound] = total.get(bound, 0) + float(value)
    return total


def between(before, after):
    return {bound: count - before.get(bound, 0) for bound, count in after.items()}


def quantile(counts, share):
    """As Prometheus' histogram_quantile: evenly within the bucket. In seconds; None when nothing was counted."""
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] == 0:
        return None
    rank, lower, below = counts[bounds[-1]] * share, 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            if bound == math.inf:
                return lower
            inside = counts[bound] - below
            return lower + (bound - lower) * ((rank - below) / inside if inside else 1)
        lower, below = bound, counts[bound]
    return lower


def quantile_text(counts, share):
    """A quantile with its unit; one within the first bucket is only known to be under its bound."""
    value, first = quantile(counts, share), min(counts)
    return f"under {time(first)}" if value is not None and value < first else time(value)


def number_between(counts, low, high):
    """How many were counted above `low` and at or below `high`, two of the bounds."""
    return int(counts[high] - counts[low])


class Used:
    """CPU of named groups of processes from its making to `read`."""

    def __init__(self, groups):
        self.groups = groups
        self.before = {name: [cpu(pid) for pid in pids] for name, pids in groups.items()}

    def read(self):
        """Seconds, by name and process."""
        return {
            name: [cpu(pid) - before for pid, before in zip(pids, self.before[name])]
            for name, pids in self.groups.items()
        }


def system_calls(pid, work, file):
    """How often a process made each system call during `work`: in a run of its own, since strace slows it down."""
    if not shutil.which("strace"):
        sys.exit("strace is missing: apt-get install strace")
    strace = subprocess.Popen(["strace", "-c", "-f", "-p", str(pid), "-o", file], stderr=subprocess.PIPE, text=True)
    strace.stderr.readline()  # it is attached
    work()
    strace.send_signal(signal.SIGINT)
    strace.communicate()
    counts = {}
    with open(file) as lines:
        for line in lines:
            words = line.split()
            if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
                counts[words[-1]] = int(words[3])
    return counts


def median(values):
    return statistics.median(values)
