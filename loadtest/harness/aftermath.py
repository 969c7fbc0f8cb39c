"""Judges the state after a sampled run: memory, file descriptors, open tunnels, and how the gateways stop."""

import time
from . import drain
from .judge import Held
from .sampler import Memory, svg

PATIENCE = 90  # seconds for everything to close
FDS_MORE = 4  # file descriptors that a daemon may keep after its first traffic: a pooled connection or two
JUDGED = ("gateway", "issuer", "agent")  # whose memory must be flat; the others are shown
HEAD = ("process", "start", "end", "most", "growth, 2nd half", "explained", "a day at that slope",
        "fds start, most, end", "threads", "CPU")


def judge(deployment, result, sampler, folder, log):
    log("waiting until all tunnels and connections are closed")
    result.thresholds += settled(deployment, sampler)
    result.table = [HEAD]
    for name in sampler.names():
        samples = sampler.of(name)
        if len(samples) < 4 or "rss" not in samples[0]:
            continue
        memory = Memory(samples)
        result.table.append(row(name, samples, memory))
        if name.startswith(JUDGED):
            result.thresholds.append(Held(
                f"memory of {name} is flat in the second half",
                f"{mib(memory.growth)} more, {mib(memory.explained)} of it by the cache of spent keys",
                f"at most {mib(memory.allowed)} unexplained", memory.flat))
    for number, _ in enumerate(deployment.memcached, 1):
        first, *_, last = sampler.of(f"store-{number}")
        result.notes.append(f"memcached {number}: {first['items']} items in {first['bytes']} bytes before, "
                            f"{last['items']} in {last['bytes']} after")
    if sampler.lost:
        result.notes.append(f"{sampler.lost} samples could not be taken")
    # Without k6, which holds all tokens: its memory would hide all other curves.
    shown = [row[0] for row in result.table[1:] if row[0] not in sampler.also]
    (folder / "samples.svg").write_text(svg(sampler, shown))
    gateways = {name: pid for name, pid in deployment.pids.items() if name.startswith("gateway")}
    if deployment.parent and gateways:
        log("draining the gateways")
        for name, (code, seconds) in drain.drain(gateways, deployment.parent).items():
            result.thresholds.append(
                Held(f"{name} drains on SIGTERM", f"exit code {code} after {seconds:.2f} s", "exit code 0", code == 0))


def mib(size):
    return f"{size / (1 << 20):.1f} MiB"


def row(name, samples, memory):
    fds = [sample["fds"] for sample in samples]
    cpu = (samples[-1]["cpu"] - samples[0]["cpu"]) / (samples[-1]["seconds"] - samples[0]["seconds"])
    return (name, mib(memory.start), mib(memory.end), mib(memory.most), mib(memory.growth), mib(memory.explained),
            mib(memory.a_day), f"{fds[0]:.0f}, {max(fds):.0f}, {fds[-1]:.0f}", f"{samples[-1]['threads']:.0f}",
            f"{100 * cpu:.1f} %")


def settled(deployment, sampler):
    """After the traffic: nothing is open, and the file descriptors are as before. Waits for it, with a limit."""
    admins = deployment.all_admins()
    deadline = time.monotonic() + PATIENCE
    while True:
        rows = []
        for name, url in admins.items():
            rows += rest(name, sampler.daemon(name, url), sampler.of(name))
        if all(held.held for held in rows) or time.monotonic() > deadline:
            return rows
        time.sleep(0.5)


def rest(name, now, samples):
    """Compares what one daemon still holds with what it held before."""
    for gauge in ("tunnels", "connections"):
        if gauge in now:
            yield Held(f"{gauge} open at {name} after the run", f"{now[gauge]:.0f}", "0", now[gauge] == 0)
    if samples and "fds" in now:
        before = samples[0]["fds"]
        yield Held(f"file descriptors of {name} after the run", f"{now['fds']:.0f}",
                   f"{before:.0f} before, and at most {FDS_MORE} more", now["fds"] <= before + FDS_MORE)
