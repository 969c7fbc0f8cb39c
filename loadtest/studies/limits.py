"""Finds the limits: memory of tunnels and of idle connections, and the most checks a second, with each process's share
of a core.

usage: loadtest/run limits [ROUNDS] [TUNNELS]

A gateway with one worker gets up to TUNNELS (as many as the limit of open files allows, 9500 at most) idle tunnels to
an echo server in a process of its own, and then, without tunnels, kept connections. Then ROUNDS (5) rounds of the
highest rates: fresh tokens, replays and requests without a token, with one and two workers. Writes
loadtest/results/DATE-limits.md and its plot. Runs the programs that POSTERN_BINARY (target/release/postern) and
`memcached` name, on loopback.
"""

import os, select, signal, sys, time
from rig import plot, reading, tokens
from rig.clients import Clients
from rig.configs import embedded, shared
from rig.net import connect, wait_until
from rig.programs import Programs, many_files, served
from rig.report import Report, middle, rounds, table
from rig.units import size

FILES = many_files()
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
TUNNELS = min(
    int(sys.argv[2]) if len(sys.argv) > 2 else 9500, (FILES - 500) // 2
)  # two descriptors each in the gateway
KEPT = FILES - 1000
CHECKS, BURST, IDLE = 4000, 20, 5
PATIENT = {"timeout": "5s"}
NO_TOKEN = b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"


def echo(listener):
    """Sends back what comes, on any number of connections."""
    poll, streams = select.epoll(), {}
    poll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                stream = listener.accept()[0]
                streams[stream.fileno()] = stream
                poll.register(stream, select.EPOLLIN)
                continue
            try:
                got = streams[number].recv(4096)
                streams[number].sendall(got)
            except ConnectionError:
                got = b""
            if not got:
                streams.pop(number).close()


def after_answer(address, request, status):
    """A connection on which `request` was answered with `status`."""
    stream, answer = connect(address), b""
    stream.sendall(request)
    while b"\r\n\r\n" not in answer:
        got = stream.recv(4096)
        assert got, "the gateway closed the connection"
        answer += got
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
    return stream


def idle_cpu(gateway):
    """Share of a core when idle, in per cent."""
    before = reading.cpu(gateway.pid)
    time.sleep(IDLE)
    return (reading.cpu(gateway.pid) - before) / IDLE * 100


def steps(most):
    return sorted({step for step in (1000, 2500, 5000, 10_000, 20_000) if step < most} | {most})


def ramp(gateway, most, open_one, use=None):
    """Opens up to `most`, a step at a time: their number, resident bytes, CPU of opening one, CPU when idle."""
    held, rows = [], [(0, reading.resident(gateway.pid), None, None, idle_cpu(gateway))]
    for step in steps(most):
        before, number = reading.cpu(gateway.pid), step - len(held)
        held += [open_one(len(held) + n) for n in range(number)]
        opening = (reading.cpu(gateway.pid) - before) * 1e6 / number
        fresh = reading.resident(gateway.pid)
        if use:
            for stream in held[-number:]:
                use(stream)
        rows.append((step, fresh, reading.resident(gateway.pid), opening, idle_cpu(gateway)))
    for stream in held:
        stream.close()
    return rows


def exchange(stream):
    """4 KiB there and back."""
    stream.sendall(b"x" * 4096)
    left = 4096
    while left:
        left -= len(stream.recv(left))


def bursts(address, request, clients, number):
    """`number` requests that are answered 407, twenty at a time on each connection, so that the driver is not the
    bottleneck."""
    poll, streams, left = select.epoll(), {}, number // BURST
    for _ in range(clients):
        stream = connect(address)
        streams[stream.fileno()] = [stream, 0]
        poll.register(stream, select.EPOLLIN)
        stream.sendall(request * BURST)
        left -= 1
    under_way = clients
    while under_way:
        for fd, _ in poll.poll():
            stream, seen = streams[fd]
            seen += stream.recv(1 << 17).count(b"HTTP/1.1 407")
            if seen >= BURST:
                seen -= BURST
                if left > 0:
                    stream.sendall(request * BURST)
                    left -= 1
                else:
                    under_way -= 1
            streams[fd][1] = seen
    for stream, _ in streams.values():
        stream.close()


def rates(programs, memcached, values, results):
    """One round of every kind: rate by the clock, and each process's share of a core."""
    for workers in (1, 2):
        for kind in ("fresh, embedded", "fresh, memcached", "replay, from the embedded store", "no token"):
            on_memcached = kind == "fresh, memcached"
            section = (
                shared(memcached.address, "pipelined", **PATIENT) if on_memcached else embedded(programs.path("spent"))
            )
            gateway = programs.gateway(section, workers)
            requests = [tokens.request(value) for value in values]
            if kind.startswith("fresh"):
                number, clients = len(values), Clients([gateway.address], 64)
                work = lambda: clients.run([requests])
            else:
                number = 100_000
                request = NO_TOKEN if kind == "no token" else requests[0]
                after_answer(gateway.address, request, 407 if kind == "no token" else 502).close()
                work = lambda: bursts(gateway.address, request, 64, number)
            used = reading.Used({"gateway": [gateway.pid], "memcached": [memcached.pid], "driver": [os.getpid()]})
            began = time.perf_counter()
            answered = work()
            took, seconds = time.perf_counter() - began, {name: sum(each) for name, each in used.read().items()}
            assert answered in (None, {502: number}), answered
            tokens.forget(memcached.address, values)
            programs.stop(gateway)
            busy = {name: seconds[name] / took for name in seconds}
            results.setdefault((kind, workers), []).append(
                {"rate": number / took, "cpu": seconds["gateway"] * 1e6 / number, "busy": busy}
            )


ABOUT_IDLE = f"""One gateway, one worker, embedded store. Resident memory (`VmRSS`) of the process; the kernel's own
memory for sockets is not in it. The limit of open files here is {FILES:,}, and a tunnel takes two: hence {TUNNELS:,}
tunnels and {KEPT:,} connections. Each tunnel spent its own token; "used" is after 4 KiB went through and came back.
Idle CPU is that of {IDLE} s in which nothing is sent."""
ABOUT_RATES = f"""64 clients on kept connections, {ROUNDS} rounds, every row in turn in each, a fresh gateway for each.
Fresh tokens: {CHECKS:,}, one outstanding request for each client, the target refuses the connection. Replays of one
token, whose record the embedded store has, and requests without one: 100,000, {BURST} outstanding for each client. Busy
is a process's CPU by the clock: 100 % is one of the two cores. The driver is one thread of Python and takes its core
from the programs that it measures, as does other work on the machine."""


def measure_idle(programs, target):
    """Tokens; the steps of tunnels; the resident memory after they are closed; and the steps of kept connections."""
    gateway = programs.gateway(embedded(programs.path("spent")))
    values = tokens.mint(programs.issuer_url, gateway, max(TUNNELS, CHECKS), programs.path("tokens"))
    pay = lambda number: after_answer(gateway.address, tokens.request(values[number], target), 200)
    tunnels = ramp(gateway, TUNNELS, pay, exchange)
    wait_until("all tunnels are closed", lambda: "postern_tunnels_open 0" in reading.metrics(gateway.admin))
    after = reading.resident(gateway.pid)
    programs.stop(gateway)
    gateway = programs.gateway(embedded(programs.path("spent")), header_timeout="1h")
    kept = ramp(gateway, KEPT, lambda _: after_answer(gateway.address, NO_TOKEN, 407))
    programs.stop(gateway)
    return values, tunnels, after, kept


def tell_idle(report, tunnels, after, kept):
    header = ["CPU of opening one, µs", "idle CPU, % of a core"]
    (_, base, _, _, idle), *steps_of = tunnels
    rows = [["0", size(base), "", "", "", f"{idle:.2f}"]]
    for count, fresh, used, cpu, idle in steps_of:
        rows.append([f"{count:,}", size(fresh), size(used), size((used - base) / count), f"{cpu:.0f}", f"{idle:.2f}"])
    tunnel_table = table(["tunnels", "resident, fresh", "resident, used", "a tunnel, used", *header], rows)
    report.add("## Idle tunnels and connections", ABOUT_IDLE, tunnel_table)
    report.add(f"After all tunnels were closed: {size(after)}.")
    (_, base, _, _, idle), *others = kept
    rows = [["0", size(base), "", "", f"{idle:.2f}"]]
    for count, fresh, _, cpu, idle in others:
        rows.append([f"{count:,}", size(fresh), size((fresh - base) / count), f"{cpu:.0f}", f"{idle:.2f}"])
    report.add(table(["kept connections", "resident", "a connection", *header], rows))
    plot.curves(
        report.picture("memory", "Resident memory by idle tunnels and by kept connections"),
        "Memory of the gateway",
        "resident memory of the process, one worker",
        "open at once",
        "MiB",
        {
            "tunnels, used": [(count, used / 2**20) for count, _, used, *_ in steps_of],
            "kept connections": [(count, fresh / 2**20) for count, fresh, *_ in others],
        },
    )


def tell_rates(report, results):
    rows, names = [], ("gateway", "memcached", "driver")
    for (kind, workers), some in results.items():
        busy = [f"{reading.median([one['busy'][name] for one in some]) * 100:.0f} %" for name in names]
        cpu = [one["cpu"] for one in some]
        each = f"{1e6 / reading.median(cpu):,.0f}"
        rows.append([kind, workers, middle([one["rate"] for one in some], 0), middle(cpu), each, *busy])
    header = ["requests", "workers", "a second, by the clock", "gateway, µs of CPU each", "a CPU second"]
    header += [f"{name} busy" for name in names]
    report.add("## The most checks a second, by the clock", ABOUT_RATES, table(header, rows))


with Programs() as programs:
    report = Report("limits", "Where the limits are")
    target, child = served(echo)
    try:
        programs.issuer()
        values, tunnels, after, kept = measure_idle(programs, target)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    memcached, results = programs.memcached(), {}
    for number in range(ROUNDS):
        rates(programs, memcached, values[:CHECKS], results)
        print(f"round {number + 1} of {ROUNDS}, load {reading.load_average()}", flush=True)
    tell_idle(report, tunnels, after, kept)
    tell_rates(report, results)
    report.add("## All rounds", "A second, by the clock:")
    lines = [
        rounds(f"{kind}, {workers} worker{'s' * (workers > 1)}", [one["rate"] for one in some], 0)
        for (kind, workers), some in results.items()
    ]
    report.add("\n".join(lines))
    report.write()
