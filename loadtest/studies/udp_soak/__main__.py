"""UDP through a gateway for as long as is asked: its descriptors and its memory must stay flat.

usage: loadtest/run udp-soak [--minutes N] [--idle N]

Each turn opens tunnels of UDP that end in order and by resets, sends datagrams both ways, and leaves tunnels idle for a moment. Then
all of them are over, and the gateway is looked at. Fails if its own memory in the last quarter, without 39 bytes for each spent token,
is more than 5 % and 1 MiB above that in the second quarter, or if at the end a tunnel or more than four further descriptors are open.
The gateway is POSTERN_BINARY, the driver POSTERN_LOADTEST, as for `compare`.
"""

import argparse, os, re, statistics, sys, tempfile, time, types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "compare"))

import measure
from proxies import postern
from rig import Failed, binaries, certificates, reading
from rig.net import free_port, wait_until
from rig.programs import many_files, stop_on_sigterm
from running import Running, log, mint

RECORD = 39 / 1024  # KiB for a spent token, docs/operate/capacity.md
TUNNELS = 300


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--idle", type=int, default=500, help="idle tunnels in each turn")
    return parser.parse_args()


def turn(setup, gateway):
    """Returns the number of tokens that it has spent."""
    if gateway.used:
        os.remove(gateway.tokens)
    gateway.used = 0
    count = 2 * TUNNELS + 2 * setup.bulk_tunnels + setup.idle
    mint(setup, gateway, count)
    for gateway.resets in (True, False):
        measure.tunnels(setup, gateway, TUNNELS, setup.clients)
    for direction in ("down", "up"):
        measure.datagrams(setup, gateway, 1200, 32, direction)
    connections = -(-setup.idle // measure.STREAMS)
    drive = measure.Drive(setup, gateway, "idle", setup.idle, "--count", str(setup.idle), connections=connections)
    drive.go()
    drive.end()
    return count


def tunnels_open(gateway):
    return int(re.search(r"^postern_udp_tunnels_open (\d+)", reading.metrics(f"127.0.0.1:{gateway.admin}"), re.M)[1])


def look(gateway, minutes, spent):
    wait_until("all tunnels are over", lambda: tunnels_open(gateway) == 0)
    pids = gateway.pids()[gateway.name]
    own, descriptors = measure.settled(pids)["own"], sum(map(reading.descriptors, pids))
    log(f"{minutes:6.1f} minutes, {spent:8} tokens: {own:,} KiB of memory, {descriptors} descriptors")
    return types.SimpleNamespace(minutes=minutes, own=own - spent * RECORD, descriptors=descriptors)


def judge(samples):
    """What is wrong."""
    half = len(samples) // 2
    before = statistics.median(sample.own for sample in samples[half // 2 : half])
    after = statistics.median(sample.own for sample in samples[half + half // 2 :])
    print(f"own memory without records: {before:,.0f} KiB in the second quarter, {after:,.0f} KiB in the last")
    first, last = samples[0].descriptors, samples[-1].descriptors
    print(f"descriptors: {first} after the first turn, {last} at the end")
    if after > before * 1.05 + 1024:
        yield "the memory grows"
    if last > first + 4:
        yield "descriptors stay open"


def main():
    given = arguments()
    stop_on_sigterm()
    many_files()
    with tempfile.TemporaryDirectory() as work:
        setup = types.SimpleNamespace(work=work, driver=binaries.driver(), target_port=free_port(), idle=given.idle)
        setup.workers, setup.clients, setup.bulk_tunnels, setup.datagrams = 1, 16, 4, 50_000
        setup.certificate = certificates.make(os.path.join(work, "tls"))
        with Running(setup) as running:
            setup.issuer = f"http://127.0.0.1:{running.start(postern.Issuer).port}"
            gateway = running.start(postern.Udp)
            samples, spent, began = [], 0, time.monotonic()
            while len(samples) < 4 or time.monotonic() - began < given.minutes * 60:
                spent += turn(setup, gateway)
                samples.append(look(gateway, (time.monotonic() - began) / 60, spent))
    if wrong := list(judge(samples)):
        raise Failed("; ".join(wrong))


if __name__ == "__main__":
    main()
