"""Measures a proxy's processes from outside while the driver works: CPU time, memory, system calls."""

import json, os, subprocess, time
from rig import Failed, reading

GIB = 1 << 30
STREAMS = 100  # idle tunnels on one HTTP/2 connection: all proxies allow as many
IDLE = 10  # seconds in which an idle proxy's CPU is measured
# Datagrams by name: bytes of each, how many go out together, and the direction.
DATAGRAMS = {
    "down_100": (100, 32, "down"),
    "up_100": (100, 32, "up"),
    "down_1200": (1200, 32, "down"),
    "up_1200": (1200, 32, "up"),
    "alone_100": (100, 1, "down"),  # each is asked for by another one
}


def cpu_by_program(pids):
    return {name: {pid: reading.cpu(pid) for pid in of} for name, of in pids.items()}


class Drive:
    """One run of the driver through a proxy. It waits between getting ready and working, so that clocks can be read."""

    def __init__(self, setup, proxy, work, tunnels, *options, connections=1):
        command = [setup.driver, work, "--wait", "--proxy", f"127.0.0.1:{proxy.port}", "--target", proxy.target]
        command += [*options, *proxy.way(connections), *proxy.credentials(tunnels)]
        self.proxy = proxy
        pipe, environment = subprocess.PIPE, os.environ | {"RUST_BACKTRACE": "0"}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.expect(lambda line: line == "ready\n")

    def expect(self, fits):
        line = self.process.stdout.readline()
        if not fits(line):
            self.fail(line)
        return line

    def fail(self, line=""):
        errors = self.process.communicate()[1]
        raise Failed(f"{self.proxy.title}: {line}{errors}The proxy's output: {self.proxy.output()}")

    def go(self):
        """Lets it work, and returns its result."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.expect(lambda line: line.startswith("{")))

    def end(self):
        self.process.stdin.close()
        if self.process.wait():
            self.fail()

    def measured(self):
        """Lets it work to its end, and adds the seconds of CPU of each of the proxy's programs."""
        pids = self.proxy.pids()
        before = cpu_by_program(pids)
        result = self.go()
        after = cpu_by_program(pids)
        self.end()
        if self.proxy.pids() != pids:
            raise Failed(f"{self.proxy.title}: a process started or ended meanwhile, and its CPU time is not known")
        result["cpu"] = {name: sum(after[name].values()) - sum(before[name].values()) for name in pids}
        return result


def tunnels(setup, proxy, count, clients):
    return Drive(setup, proxy, "tunnels", count, "--count", str(count), "--clients", str(clients)).measured()


def bulk(setup, proxy, direction):
    options = ["--mebibytes", str(setup.mebibytes), "--tunnels", str(setup.bulk_tunnels), "--direction", direction]
    return Drive(setup, proxy, "bulk", setup.bulk_tunnels, *options).measured()


def datagrams(setup, proxy, size, burst, direction):
    count = setup.datagrams if burst > 1 else setup.datagrams // 8
    options = ["--count", str(count), "--size", str(size), "--burst", str(burst), "--direction", direction]
    options += ["--tunnels", str(setup.bulk_tunnels)]
    return Drive(setup, proxy, "datagrams", setup.bulk_tunnels, *options).measured()


def warm_up(setup, proxy):
    tunnels(setup, proxy, setup.warm_up, setup.clients)


def one_round(setup, proxy):
    """All timings of a proxy, as flat numbers. `cpu_us` is the proxy's own, `beside_us` that of the programs beside it."""
    many = tunnels(setup, proxy, setup.tunnels, setup.clients)
    alone = tunnels(setup, proxy, setup.alone, 1)
    relayed = datagram_costs(setup, proxy) if proxy.udp else bulk_costs(setup, proxy)
    own, beside = split(proxy, many["cpu"])
    numbers = {
        "cpu_us": own * 1e6 / many["count"],
        "beside_us": beside * 1e6 / many["count"],
        "rate": many["count"] / many["seconds"],
        "alone_cpu_us": split(proxy, alone["cpu"])[0] * 1e6 / alone["count"],
        **relayed,
    }
    for prefix, result in (("", many), ("alone_", alone)):
        for what in ("answered", "echoed"):
            for percentile in ("p50", "p99"):
                numbers[f"{prefix}{what}_{percentile}_us"] = result[f"{what}_us"][percentile]
    return {name: round(value, 3) for name, value in numbers.items()}


def bulk_costs(setup, proxy):
    down, up = bulk(setup, proxy, "down"), bulk(setup, proxy, "up")
    return gib_costs(proxy, "down", down) | gib_costs(proxy, "up", up)


def gib_costs(proxy, way, result):
    return {
        f"{way}_s_per_gib": split(proxy, result["cpu"])[0] * GIB / result["bytes"],
        f"{way}_gib_per_s": result["bytes"] / GIB / result["seconds"],
    }


def datagram_costs(setup, proxy):
    """CPU for each datagram that arrived, and the same for a GiB of payload in the larger ones."""
    numbers = {}
    for name, (size, burst, direction) in DATAGRAMS.items():
        result = datagrams(setup, proxy, size, burst, direction)
        numbers[f"{name}_us"] = split(proxy, result["cpu"])[0] * 1e6 / result["delivered"]
        numbers[f"{name}_lost"] = 1 - result["delivered"] / result["sent"]
        if size == 1200:
            numbers |= gib_costs(proxy, direction, result | {"bytes": result["delivered"] * size})
    return numbers


def split(proxy, by_program):
    """The proxy's own share, and that of the programs beside it."""
    own = by_program[proxy.name]
    return own, sum(by_program.values()) - own


def settled(pids):
    """Memory when it has stopped changing: proxies may tidy up a moment later."""
    last = reading.memory(pids)
    for _ in range(40):
        time.sleep(0.5)
        now = reading.memory(pids)
        if abs(now["own"] - last["own"]) <= last["own"] // 1000:
            return now
        last = now
    return last


def idle_memory(setup, proxy):
    """Of a proxy that was just started: the growth for each open and idle tunnel, the whole with all of them, and its CPU."""
    warm_up(setup, proxy)
    connections = -(-setup.idle // STREAMS)
    drive = Drive(setup, proxy, "idle", setup.idle, "--count", str(setup.idle), connections=connections)
    before = settled(proxy.pids()[proxy.name])
    count = drive.go()["open"]
    pids = proxy.pids()[proxy.name]
    after, began, used = settled(pids), time.monotonic(), reading.Used({"idle": pids})
    time.sleep(IDLE)
    cpu = sum(used.read()["idle"]) / (time.monotonic() - began)
    drive.end()
    return {
        "own_kib": round((after["own"] - before["own"]) / count, 3),
        "rss_kib": round((after["rss"] - before["rss"]) / count, 3),
        "whole_mib": round(after["rss"] / 1024, 3),
        "cpu_ms_per_s": round(cpu * 1e3, 3),
    }


def system_calls(setup, proxy):
    """System calls for a tunnel by name, of the proxy's own processes."""
    count = setup.traced
    drive = Drive(setup, proxy, "tunnels", count, "--count", str(count), "--clients", str(setup.clients))
    calls = reading.system_calls(proxy.pids()[proxy.name], drive.go, setup.work)
    drive.end()
    return {name: number / count for name, number in calls.items()}
