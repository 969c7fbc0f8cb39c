"""What the kernel's settings of deploy/sysctl/ are worth to a gateway whose clients or targets are far away.

usage: loadtest/run kernel [ROUNDS]

One gateway, and a host that is 50 ms away in each direction (rig/far.py), on this machine. For each setting the same is done
with the kernel's default and with another value, in turn, ROUNDS (3) times:

- a download through a tunnel that paused for 3 s, with and without slow start after idle, with each congestion control that everyone may use;
- a long download and a long upload, by the largest buffer of a socket;
- tunnels to one address and port: how many are open at once, and how many one after the other, by the range of ports and
  by the reuse of those that wait (TIME_WAIT);
- many connections at once, by the length of the accept queue.

Writes loadtest/results/DATE-kernel.md. Needs root; the machine's own settings stay as they are.
"""

import os, select, signal, socket, statistics, struct, sys, time
from rig import Failed, binaries, configs, far, reading, tokens
from rig.net import free_port
from rig.programs import Programs, served
from rig.report import Report, rounds, table
from rig.tunnels import attempt, opened

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
DELAY = 0.05
KIB, MIB = 1 << 10, 1 << 20
PAUSED, PAUSE = 512 * KIB, 3
LONG = 16 * MIB
PORTS, MORE = 500, 50
TRIES, SPAN = 1500, 4
BURST = 2000
# The defaults of a kernel without tuning; a machine's own may differ.
DEFAULTS = {
    "net.ipv4.tcp_slow_start_after_idle": 1,
    "net.ipv4.tcp_congestion_control": "reno",  # cubic, but a namespace may use only what everyone may
    "net.ipv4.tcp_rmem": f"4096 131072 {6 * MIB}",
    "net.ipv4.tcp_wmem": f"4096 16384 {4 * MIB}",
    "net.ipv4.ip_local_port_range": "32768 60999",
    "net.ipv4.tcp_tw_reuse": 2,
    "net.core.somaxconn": 4096,
}
ORDER = struct.Struct("!cI")  # what the target is to do, and with how many bytes


def target(listener):
    """A target that sends as many bytes as it was ordered, or takes them and answers with one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that the children that ended are gone
    while True:
        stream = listener.accept()[0]
        if not os.fork():
            listener.close()
            work(stream)
        stream.close()


def work(stream):
    """The orders of one connection, to its end."""
    try:
        while order := stream.recv(ORDER.size, socket.MSG_WAITALL):
            what, count = ORDER.unpack(order)
            if what == b"g":
                stream.sendall(bytes(count))
            else:
                take(stream, count)
                stream.sendall(b"!")
    finally:
        os._exit(0)


def take(stream, count):
    while count:
        some = len(stream.recv(min(count, MIB)))
        if not some:
            raise Failed("the tunnel ended")
        count -= some


def transfer(stream, what, count):
    """Seconds that it takes."""
    began = time.monotonic()
    stream.sendall(ORDER.pack(what, count))
    if what == b"p":
        stream.sendall(bytes(count))
    take(stream, count if what == b"g" else 1)
    return time.monotonic() - began


def after_pauses(address, value, target):
    """How long a download takes in a tunnel that is warm, and then after a pause: milliseconds."""
    with opened(address, value, target) as stream:
        for _ in range(4):
            transfer(stream, b"g", 4 * PAUSED)
        warm = transfer(stream, b"g", PAUSED)
        time.sleep(PAUSE)
        return [1e3 * warm, 1e3 * transfer(stream, b"g", PAUSED)]


def rate(address, value, target, what):
    """Bytes a second of the second half of a long transfer, so that its slow start does not count."""
    with opened(address, value, target) as stream:
        transfer(stream, what, LONG)
        return LONG / transfer(stream, what, LONG)


def burst(address):
    """How many of the connections that begin at once are there only after half a second, and the last of them."""
    poll, streams, times = select.epoll(), {}, []
    began = time.monotonic()
    host, port = address.split(":")
    for _ in range(BURST):
        stream = socket.socket()
        stream.setblocking(False)
        stream.connect_ex((host, int(port)))
        streams[stream.fileno()] = stream
        poll.register(stream, select.EPOLLOUT)
    while len(times) < BURST:
        for number, _ in poll.poll(60):
            poll.unregister(number)
            times.append(time.monotonic() - began)
    return [sum(each > 0.5 for each in times), max(times)]


class Stage:
    """A gateway and its tokens on the near host."""

    def __init__(self, programs):
        self.programs, self.ports = programs, 5000
        programs.issuer()
        self.gateway = self.start()
        self.target, _ = served(target)
        count = ROUNDS * (2 * (PORTS + MORE) + 2 * TRIES + 12)
        self.tokens = tokens.mint(programs.issuer_url, self.gateway, count, programs.path("tokens"))

    def start(self):
        port, admin = free_port(), f"127.0.0.1:{free_port()}"
        store = configs.embedded(self.programs.path("spent"))
        text = configs.gateway(f"0.0.0.0:{port}", admin, self.programs.issuer_url, store, limits=configs.LIMITS)
        command = [binaries.postern(), "gateway", "--config", self.programs.config("gateway.toml", text)]
        return self.programs.start("gateway", command, f"127.0.0.1:{port}", admin)

    def address(self):
        """The gateway's, for the far host."""
        return f"{far.NEAR}:{self.gateway.address.split(':')[1]}"

    def some(self, count):
        """Tokens that were not used before."""
        taken, self.tokens = self.tokens[:count], self.tokens[count:]
        return taken


def each(values, measure):
    """`measure` with each of `values`, a dictionary of settings, in turn; what it gave, by name."""
    results = {name: [] for name in values}
    for number in range(ROUNDS):
        order = list(values)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            for setting, value in values[name].items():
                far.setting(setting, value)
            results[name].append(measure())
            for setting in values[name]:
                far.setting(setting, DEFAULTS[setting])
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    return results


def slow_start(stage, report):
    idle, control = "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_congestion_control"
    known = far.setting("net.ipv4.tcp_allowed_congestion_control").split()
    values = {
        f"{name}, {'slow start' if on else 'none'}": {control: name, idle: on}
        for name in known for on in (1, 0)
    }
    with far.Far(DELAY) as other:
        other.set("net.ipv4.tcp_rmem", f"4096 131072 {32 * MIB}")  # the client's, so that it limits nothing
        measure = lambda: other.run(after_pauses, stage.address(), *stage.some(1), stage.target)
        results = each(values, measure)
    rows = []
    for name, pairs in results.items():
        warm, paused = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
        rows.append([name, f"{warm:,.0f}", f"{paused:,.0f}", f"{paused - warm:,.0f}"])
    about = f"""A download of {PAUSED // KIB} KiB by a client that is {2e3 * DELAY:.0f} ms away (a round trip), in a tunnel that has
    just carried more than that, and in the same one after a pause of {PAUSE} s. Medians, ms. The target is near."""
    report.add("## Slow start after idle", about, table(["", "at once", "after the pause", "more"], rows))
    report.add("\n".join(rounds(f"{name}, after the pause", [pair[1] for pair in pairs], 0) for name, pairs in results.items()))


def buffers(stage, report):
    rows = []
    for what, name, setting, first in ((b"g", "download", "net.ipv4.tcp_wmem", "4096 16384"), (b"p", "upload", "net.ipv4.tcp_rmem", "4096 131072")):
        values = {size: {setting: f"{first} {size * KIB}"} for size in (256, 1024, 4096, 16384)}
        with far.Far(DELAY) as other:
            # The client's own buffers limit nothing.
            other.set("net.ipv4.tcp_rmem", f"4096 131072 {64 * MIB}")
            other.set("net.ipv4.tcp_wmem", f"4096 16384 {64 * MIB}")
            measure = lambda: other.run(rate, stage.address(), *stage.some(1), stage.target, what)
            results = each(values, measure)
        for size, rates in results.items():
            middle = statistics.median(rates)
            share = middle * 2 * DELAY / (size * KIB)
            rows.append([name, setting, f"{size:,} KiB", f"{middle * 8 / 1e6:,.0f}", f"{share:.2f}"])
    about = f"""The rate of one tunnel whose client is {2e3 * DELAY:.0f} ms away, by the largest buffer that a socket of the
    gateway may have. In flight: how much of that buffer is on the way at that rate. Where the rate no longer grows, the carrier of
    the packets is the limit."""
    report.add("## Buffers", about, table(["", "setting", "largest", "Mbit/s", "share in flight"], rows))


def at_once(address, values, place):
    """How many tunnels are open at the same time until one is refused, and that refusal."""
    streams, last = [], "none"
    for value in values:
        stream = attempt(address, value, place)
        if isinstance(stream, str):
            last = stream
            break
        streams.append(stream)
    return [len(streams), last]


def in_turn(address, values, place):
    """Tunnels that the client closes first, one after the other within SPAN seconds: how many, and how many were refused."""
    refused = 0
    for value in values:
        stream = attempt(address, value, place)
        if isinstance(stream, str):
            refused += 1
        else:
            stream.close()
        time.sleep(SPAN / len(values))
    return [len(values), refused]


def at_a_far_target(work, stage, count):
    """`work` with `count` tokens: the client is on the far host, as the target is, whose port is another each time, so that none
    of the gateway's waits from before."""
    stage.ports += 1
    place = (far.FAR, stage.ports)
    with far.Far(0) as other:
        other.serve(lambda: target(socket.create_server(place, backlog=4096)))
        time.sleep(0.5)
        return other.run(work, stage.address(), stage.some(count), "%s:%d" % place)


def ports(stage, report):
    span, reuse = "net.ipv4.ip_local_port_range", "net.ipv4.tcp_tw_reuse"
    few = lambda count: {span: f"20000 {19999 + count}"}
    held = each({count: few(count) for count in (PORTS // 2, PORTS)}, lambda: at_a_far_target(at_once, stage, PORTS + MORE))
    rows = [[f"{count:,}", ", ".join(f"{number:,}" for number, _ in results), results[0][1]] for count, results in held.items()]
    report.add("## Ports", "Tunnels that are open at once to one address and port of a target.")
    report.add(table(["ports", "tunnels", "the next one"], rows))
    turns = each({value: few(PORTS) | {reuse: value} for value in (2, 1)}, lambda: at_a_far_target(in_turn, stage, TRIES))
    rows = [[value, f"{TRIES:,}", ", ".join(f"{refused:,}" for _, refused in results)] for value, results in turns.items()]
    report.add(f"Tunnels one after the other within some {SPAN} s, closed by the client first, with {PORTS} ports.")
    report.add(table([reuse, "tunnels", "refused"], rows))


def queue(stage, report):
    name = "net.core.somaxconn"
    results = {128: [], 4096: []}
    for _ in range(ROUNDS):
        for length in results:
            far.setting(name, length)
            gateway = stage.start()
            with far.Far(0.005) as other:
                results[length].append(other.run(burst, f"{far.NEAR}:{gateway.address.split(':')[1]}"))
            stage.programs.stop(gateway)
    rows = [[length, *("; ".join(f"{each[index]:,.{digits}f}" for each in counts) for index, digits in ((0, 0), (1, 1)))] for length, counts in results.items()]
    report.add("## The accept queue", f"{BURST:,} connections at once to a gateway with one worker.", table([name, "later than 0.5 s", "the last after, s"], rows))


def main():
    far.alone()
    for name, value in DEFAULTS.items():
        far.setting(name, value)
    report = Report("kernel", "The kernel's settings at a distance")
    with Programs() as programs:
        stage = Stage(programs)
        for study in (slow_start, buffers, ports, queue):
            study(stage, report)
    report.write()


if __name__ == "__main__":
    main()
