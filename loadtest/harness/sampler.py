"""Samples the resources of all processes during a run, and judges whether memory stays flat.

A sample of a daemon: resident memory, open file descriptors and threads from /proc if its process id is known, and
from its metrics otherwise; open tunnels and connections, and keys in the cache of spent keys, from its metrics.
"""

import csv, threading, time
from rig import plot, reading
from . import deployment as deployed

FIELDS = ("seconds", "process", "rss", "fds", "threads", "cpu", "tunnels", "connections", "cache_keys", "items",
          "bytes")
# From crates/spend/src/memcached/epochs.rs: the most bytes that a key takes in the cache of spent keys.
BYTES_PER_CACHE_KEY = 40


def of_process(pid):
    return {"rss": reading.resident(pid), "threads": reading.threads(pid), "fds": reading.descriptors(pid),
            "cpu": round(reading.cpu(pid), 2)}


def of_metrics(series):
    names = {"rss": "process_resident_memory_bytes", "fds": "process_open_fds", "threads": "process_threads",
             "cpu": "process_cpu_seconds_total", "tunnels": "postern_tunnels_open",
             "connections": "postern_connections_open", "cache_keys": "postern_store_cache_keys"}
    return {field: series[name] for field, name in names.items() if name in series}


def of_memcached(address):
    stats = reading.memcached_stats(address)
    return {"items": int(stats["curr_items"]), "bytes": int(stats["bytes"])}


class Sampler:
    """Samples every daemon and memcached once at the start, then every `interval` seconds, and once at the end."""

    def __init__(self, deployment, interval, path):
        self.deployment, self.interval = deployment, interval
        self.samples = []  # dicts with some of FIELDS
        self.also = {}  # name -> process id, of the programs that generate the load
        self.began = time.monotonic()
        self._file = open(path, "w", newline="")
        self._writer = csv.DictWriter(self._file, FIELDS)
        self._writer.writeheader()
        self._stop = threading.Event()
        self.lost = 0  # samples that could not be taken
        self.take()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        due = self.began
        while True:
            due += self.interval
            if self._stop.wait(max(0, due - time.monotonic())):
                return
            self.take()

    def stop(self):
        self._stop.set()
        self._thread.join()
        self._file.close()

    def take(self):
        seconds = round(time.monotonic() - self.began, 1)
        admins = self.deployment.all_admins()
        for name in dict.fromkeys([*self.deployment.pids, *admins]):
            self._add(seconds, name, lambda: self.daemon(name, admins.get(name)))
        for name, pid in self.also.items():
            self._add(seconds, name, lambda: of_process(pid))
        for number, address in enumerate(self.deployment.memcached, 1):
            self._add(seconds, f"store-{number}", lambda: of_memcached(address))
        self._file.flush()

    def _add(self, seconds, name, read):
        try:
            sample = {"seconds": seconds, "process": name, **read()}
        except (OSError, ValueError, KeyError):
            self.lost += 1
            return
        self.samples.append(sample)
        self._writer.writerow(sample)

    def daemon(self, name, admin):
        sample = of_metrics(deployed.metrics(admin)) if admin else {}
        if name in self.deployment.pids:
            sample |= of_process(self.deployment.pids[name])
        return sample

    def of(self, name):
        return [sample for sample in self.samples if sample["process"] == name]

    def names(self):
        return list(dict.fromkeys(sample["process"] for sample in self.samples))


def slope(points):
    """Least squares: by how much y grows when x grows by one."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    squares = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / squares if squares else 0.0


class Memory:
    """Whether the memory of a process was flat over the second half of the traffic.

    The slope is that of a least-squares line, so that one last sample does not decide. New keys in the cache of spent
    keys explain a part of it, and are bounded by [store.memcached] spent_cache.
    """

    ALLOWED_SHARE = 0.05  # of resident memory, over the second half
    ALLOWED_BYTES = 1 << 20  # or this, where that is more

    def __init__(self, samples):
        half = [sample for sample in samples if sample["seconds"] >= samples[-1]["seconds"] / 2]
        seconds = half[-1]["seconds"] - half[0]["seconds"]
        self.start, self.end = samples[0]["rss"], samples[-1]["rss"]
        self.most = max(sample["rss"] for sample in samples)
        per_second = slope([(sample["seconds"], sample["rss"]) for sample in half])
        keys = slope([(sample["seconds"], sample.get("cache_keys", 0)) for sample in half])
        self.growth = per_second * seconds
        self.explained = max(0.0, keys * BYTES_PER_CACHE_KEY * seconds)
        self.a_day = (per_second - keys * BYTES_PER_CACHE_KEY) * 86_400
        self.allowed = max(self.ALLOWED_BYTES, self.ALLOWED_SHARE * half[0]["rss"])
        self.flat = self.growth - self.explained <= self.allowed


def self_test():
    """Raises AssertionError when a leak is called flat, or flat memory a leak."""
    def hour(rss, keys=lambda second: 0):
        sample = lambda second: {"seconds": second, "rss": rss(second), "cache_keys": keys(second)}
        return Memory([sample(second) for second in range(0, 3600, 15)])

    mib = 1 << 20
    assert hour(lambda second: 20 * mib + mib * (second % 45) // 45).flat, "memory that rises and falls"
    assert hour(lambda second: 20 * mib + min(second, 900) * 8192).flat, "a warm-up in the first half"
    assert not hour(lambda second: 20 * mib + second * 1024).flat, "a leak of a KiB a second"
    keys = lambda second: 20 * second
    assert hour(lambda second: 20 * mib + keys(second) * 40, keys).flat, "the cache of spent keys"
    assert not hour(lambda second: 20 * mib + keys(second) * 100, keys).flat, "a leak beside the cache"


def svg(sampler, names):
    """Resident memory and file descriptors of the named processes, one below the other."""
    panels = []
    for field, unit, title in (("rss", 1 << 20, "Resident memory, MiB"), ("fds", 1, "Open file descriptors")):
        lines = {name: [(s["seconds"], s[field] / unit) for s in sampler.of(name) if field in s] for name in names}
        panels.append((title, lines))
    longest = max(sample["seconds"] for sample in sampler.samples)
    return plot.samples("Resources of the processes", f"a sample every {sampler.interval:g} s", longest, panels)
