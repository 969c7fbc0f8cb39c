#!/usr/bin/env python3
"""The constants of the capacity model (docs/operate/capacity.md), measured on this machine.

    cargo build --release --locked -p postern -p postern-loadtest
    loadtest/constants/measure [--rounds 3] [--tunnels 2000] [--idle 5000] [--records 4000000]

Needs memcached, nutcracker (twemproxy) and tshark with the right to capture on lo. Writes
loadtest/results/DATE-constants.md. Runs the programs that POSTERN_BINARY and POSTERN_LOADTEST (those of target/release)
name, on loopback. CPU is that of each process, so other work on the machine blurs it through caches and hyperthreads
only. mcrouter is not measured: its figures stay unknown.
"""

import argparse, base64, hashlib, os, re, statistics, subprocess, sys, time

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from rig import ROOT, reading, report as page, tokens
from rig.binaries import driver, needed
from rig.configs import memcached as store
from rig.net import connect, listens, wait_until
from rig.programs import Programs, many_files
from tunnels import Target, slab_sizes, tunnel


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 3), ("tunnels", 2000), ("idle", 5000), ("records", 4_000_000)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    given = arguments.parse_args()
    driver(), needed("nutcracker"), needed("tshark")  # better now than at the end
    many_files()  # a tunnel takes two descriptors of the gateway
    report = page.Report("constants", "The constants of the capacity model")
    with Programs() as programs:
        records(report, programs, given.records)
        commands(report, programs, given.rounds)
        tunnels(report, programs, given)
    report.write()


def cpu_us(program):
    return reading.cpu(program.pid) * 1e6


def table(report, title, head, rows):
    report.add(f"## {title}", page.table(head, rows))


def records(report, programs, most):
    """What records take, as memcached counts it and as the process grows, hash table included."""
    rows = []
    for count in (max(1000, number // 1000 * 1000) for number in (most // 4, most)):  # the script adds thousands
        server = programs.memcached(4096, more=["-C"], where=programs.path("records"))
        empty = reading.resident(server.pid)
        script = os.path.join(ROOT, "deploy/mcrouter/record-size.py")
        asked = [sys.executable, script, server.address, str(count)]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        number = lambda name: int(re.search(rf"{name} (\d+)", said)[1])
        assert number("curr_items") == count, said
        full = reading.resident(server.pid)
        programs.stop(server)
        each = (number("total_malloced") / count, (full - empty) / count, full / count)
        rows.append([f"{count:,}", number("chunk_size"), *(f"{size:.1f}" for size in each)])
    head = ["records", "chunk of its class, bytes", "total_malloced a record"]
    head += ["growth of the process a record", "process a record"]
    table(report, "A spent record in memcached", head, rows)


def spent_key():
    return b"ps1." + base64.urlsafe_b64encode(hashlib.sha256(os.urandom(16)).digest()).rstrip(b"=")


class Line:
    """A connection that sends commands in bursts and reads all replies of one before the next."""

    def __init__(self, address):
        self.stream = connect(address)
        self.expires = int(time.time()) + 3600

    def burst(self, data, length):
        self.stream.sendall(data)
        while length > 0:
            got = self.stream.recv(1 << 16)
            assert got, "the server closed the connection"
            length -= len(got)
        assert length == 0, "more came than was asked for"

    def add(self, keys):
        value = b" 0 %d 22\r\n%s\r\n" % (self.expires, b"v" * 22)
        self.burst(b"".join(b"add " + key + value for key in keys), len(b"STORED\r\n") * len(keys))

    def get(self, keys):
        """One `get` for all, of which none is there."""
        self.burst(b"get " + b" ".join(keys) + b"\r\n", len(b"END\r\n"))


def commands(report, programs, rounds):
    """CPU of the servers for one command, by how many come in one write: the gateway joins `get`s of a burst."""
    rows = []
    server = programs.memcached(2048, more=["-C"])
    router = programs.twemproxy([server], timeout=400)
    lines = {"direct": Line(server.address), "routed": Line(router.address)}
    for burst in (1, 4, 16, 64):
        costs = {}
        for _ in range(rounds):
            for way, line in lines.items():
                for verb in ("get", "add"):
                    number = 20_000 // burst if burst > 1 else 5_000
                    keys = [[spent_key() for _ in range(burst)] for _ in range(number)]
                    used = reading.Used({"memcached": [server.pid], "twemproxy": [router.pid]})
                    for some in keys:
                        getattr(line, verb)(some)
                    for name, [seconds] in used.read().items():
                        costs.setdefault((way, verb, name), []).append(seconds * 1e6 / (number * burst))
        median = lambda *key: f"{statistics.median(costs[key]):.2f}"
        direct = [median("direct", verb, "memcached") for verb in ("add", "get")]
        rows.append([burst, *direct, *(median("routed", verb, "twemproxy") for verb in ("add", "get"))])
    programs.stop(router, server)
    head = ["commands in one write"]
    head += [f"{name}, `{verb}` µs" for name in ("memcached", "twemproxy") for verb in ("add", "get")]
    table(report, "CPU of memcached and twemproxy for one command", head, rows)


class Capture:
    """Frames to and from one port on lo."""

    def __init__(self, address, path):
        self.port, self.path = int(address.split(":")[1]), path
        arguments = [needed("tshark"), "-q", "-i", "lo", "-f", f"tcp port {self.port}", "-w", path]
        self.child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.child.stderr:
            if "Capturing on" in line:
                break
        # The capture has begun when it sees a connection of ours.
        seen = lambda: os.path.exists(path) and os.path.getsize(path) > 400
        wait_until("tshark captures", lambda: listens(address) and seen())

    def end(self):
        """Frames and bytes to the port, and from it."""
        time.sleep(1)  # tshark writes what it has
        self.child.terminate()
        self.child.wait()
        fields = [word for name in ("tcp.dstport", "frame.len", "tcp.len") for word in ("-e", name)]
        asked = [needed("tshark"), "-r", self.path, "-T", "fields", *fields]
        lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        sums = {True: [0, 0, 0], False: [0, 0, 0]}
        for line in lines:
            to, length, payload = (int(part) for part in line.split())
            own = sums[to == self.port]
            own[0], own[1], own[2] = own[0] + 1, own[1] + length, own[2] + payload
        return sums[True], sums[False]


def tunnels(report, programs, given):
    clients = (1, 16, 64)
    count = given.rounds * len(clients) * given.tunnels * 2 + len(clients) * 1000 + given.idle + 5000
    issuer = programs.issuer()
    server = programs.memcached(1024, threads=4, more=["-C"])
    router = programs.twemproxy([server], timeout=400)
    # As configured by default, but for a deadline that a busy machine keeps, and limits that no tunnel meets.
    gateway = lambda door, **more: programs.gateway(store(door.address, timeout="1s", **more))
    direct, routed = gateway(server), gateway(router)
    purse = mint(report, programs, issuer, direct, count)
    drive(report, {"directly": direct, "through twemproxy": routed}, server, router, clients, purse, given)
    watch(report, server)
    idle(report, direct, purse, given.idle)
    gibibytes(report, direct, purse, given.rounds)
    programs.stop(direct, routed)
    wire(report, programs, gateway(server, canary_interval="1h"), server, clients, purse)


class Purse:
    """Tokens, each used once."""

    def __init__(self, path, tokens):
        self.path, self.tokens, self.used = path, tokens, 0

    def take(self, count):
        first, self.used = self.used, self.used + count
        assert self.used <= len(self.tokens), "more tokens are needed"
        return first

    def one(self):
        return self.tokens[self.take(1)]


def mint(report, programs, issuer, gateway, count):
    before, path = cpu_us(issuer), programs.path("tokens")
    purse = Purse(path, tokens.mint(programs.issuer_url, gateway, count, path))
    head = ["tokens", "CPU of the issuer a token, HTTP included, µs"]
    table(report, "The issuer", head, [[f"{count:,}", f"{(cpu_us(issuer) - before) / count:.0f}"]])
    return purse


def load(gateway, purse, count, clients):
    asked = {"--proxy": gateway.address, "--tokens": purse.path}
    asked |= {"--skip": purse.take(count), "--count": count, "--clients": clients}
    words = [str(word) for pair in asked.items() for word in pair]
    subprocess.run([driver(), "tunnels", *words], check=True, stdout=subprocess.DEVNULL)


def drive(report, fleet, server, router, clients, purse, given):
    """CPU of every process for one tunnel: connect, CONNECT with a fresh token, one byte there and back, close."""
    rows = []
    for name, gateway in fleet.items():
        for at_once in clients:
            load(gateway, purse, 100, at_once)  # warm up
            costs = []
            for _ in range(given.rounds):
                used = reading.Used({"gateway": [gateway.pid], "memcached": [server.pid], "router": [router.pid]})
                load(gateway, purse, given.tunnels, at_once)
                costs.append([seconds * 1e6 / given.tunnels for [seconds] in used.read().values()])
            own, memory, routing = (f"{statistics.median(column):.1f}" for column in zip(*costs))
            rows.append([name, at_once, own, memory, routing if "twem" in name else ""])
    table(report, "CPU for one tunnel", ["memcached", "clients", "gateway µs", "memcached µs", "twemproxy µs"], rows)


def counters(server):
    """memcached's own numbers."""
    stats = reading.memcached_stats(server.address)
    return {name: int(value) for name, value in stats.items() if value.isdigit()}


def wire(report, programs, gateway, server, clients, purse):
    """Commands, frames and bytes of one check, without canaries and probes."""
    load(gateway, purse, 100, 1)  # the epoch is known
    rows, count = [], 1000
    for at_once in clients:
        capture = Capture(server.address, programs.path("capture"))
        before = counters(server)
        load(gateway, purse, count, at_once)
        after = counters(server)
        there, back = capture.end()
        asked = [f"{(after[name] - before[name]) / count:.2f}" for name in ("cmd_get", "cmd_set")]
        frames, lengths, payloads = zip(there, back)
        figures = [f"{number / count:.2f}" for number in frames]
        figures += [f"{number / count:.0f}" for number in (*payloads, *lengths)]
        rows.append([at_once, *asked, *figures])
    head = ["clients", "keys asked for", "`add`s"]
    head += [f"{what} {way}" for what in ("frames", "payload", "bytes") for way in ("there", "back")]
    table(report, "A check on the wire, gateway to memcached", head, rows)
    report.add("Bytes are those of Ethernet frames without preamble and checksum.")


def watch(report, server):
    before, cpu, began = counters(server), cpu_us(server), time.monotonic()
    time.sleep(20)
    after, spent, took = counters(server), cpu_us(server) - cpu, time.monotonic() - began
    per = lambda name: (after[name] - before[name]) / took / 2
    head = ["`get`s a second and gateway", "`add`s", "bytes there", "bytes back"]
    head += ["memcached CPU µs a second and gateway"]
    row = [f"{per('cmd_get'):.1f}", f"{per('cmd_set'):.2f}", f"{per('bytes_read'):.0f}", f"{per('bytes_written'):.0f}"]
    table(report, "Two idle gateways, one address each", head, [[*row, f"{spent / took / 2:.0f}"]])


def idle(report, gateway, purse, count):
    target = Target()
    few = [tunnel(gateway.address, target.address, purse.one()) for _ in range(200)]
    memory, open_before = reading.resident(gateway.pid), reading.descriptors(gateway.pid)
    many = [tunnel(gateway.address, target.address, purse.one()) for _ in range(count - 200)]
    each = (reading.resident(gateway.pid) - memory) / len(many)
    files = (reading.descriptors(gateway.pid) - open_before) / len(many)
    cpu, began = cpu_us(gateway), time.monotonic()
    time.sleep(5)
    resting = (cpu_us(gateway) - cpu) / (time.monotonic() - began)
    for stream in few + many:
        stream.close()
    kinds = slab_sizes(("TCP", "sock_inode_cache", "dentry", "filp", "eventpoll_epi"))
    head = ["tunnels", "resident bytes each", "descriptors each", "CPU of the gateway while all rest, µs a second"]
    table(report, "Open tunnels", head, [[f"{count:,}", f"{each:.0f}", f"{files:.2f}", f"{resting:.0f}"]])
    said = ", ".join(f"{name} {size}" for name, size in kinds.items())
    said = f"{said}; together {sum(kinds.values())}" if said else "not to be read"
    report.add(f"The kernel's objects for one socket, bytes (/proc/slabinfo): {said}.")


def gibibytes(report, gateway, purse, rounds):
    target, buffer, costs = Target(), bytearray(1 << 20), []
    for _ in range(rounds):
        stream = tunnel(gateway.address, target.address, purse.one())
        before, left = reading.cpu(gateway.pid), 1 << 30
        stream.sendall(b"S")
        while left > 0:
            got = stream.recv_into(buffer)
            assert got, "the tunnel was closed"
            left -= got
        costs.append(reading.cpu(gateway.pid) - before)
        stream.close()
    head = ["rounds of 1 GiB", "CPU of the gateway a GiB, s: median", "least"]
    row = [rounds, f"{statistics.median(costs):.3f}", f"{min(costs):.3f}"]
    table(report, "Bytes through a tunnel", head, [row])


if __name__ == "__main__":
    main()
