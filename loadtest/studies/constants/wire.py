"""A gateway and its memcached on the wire: frames and bytes of a check, and the cost of the watch."""

import os, subprocess, time

from purse import load
from rig import reading
from rig.binaries import needed
from rig.net import listens, wait_until
from tables import cpu_us, table


class Capture:
    """Frames to and from one port on lo."""

    def __init__(self, address, path):
        self.port, self.path = int(address.split(":")[1]), path
        arguments = [needed("tshark"), "-q", "-i", "lo", "-f", f"tcp port {self.port}", "-w", path]
        self.child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.child.stderr:
            if "Capturing on" in line:
                break
        # The capture has begun when it sees a connection of this process.
        seen = lambda: os.path.exists(path) and os.path.getsize(path) > 400
        wait_until("tshark captures", lambda: listens(address) and seen())

    def end(self):
        """Frames and bytes to the port, and from it."""
        time.sleep(1)  # tshark writes what it has
        self.child.terminate()
        self.child.wait()
        fields = [word for name in ("tcp.dstport", "frame.len", "tcp.len") for word in ("-e", name)]
        command = [needed("tshark"), "-r", self.path, "-T", "fields", *fields]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        sums = {True: [0, 0, 0], False: [0, 0, 0]}
        for line in lines:
            to, length, payload = (int(part) for part in line.split())
            own = sums[to == self.port]
            own[0], own[1], own[2] = own[0] + 1, own[1] + length, own[2] + payload
        return sums[True], sums[False]


def counters(server):
    """memcached's own numbers."""
    stats = reading.memcached_stats(server.address)
    return {name: int(value) for name, value in stats.items() if value.isdigit()}


def wire(report, programs, gateway, server, clients, purse):
    """Commands, frames and bytes of one check, and what the watch reads meanwhile."""
    load(gateway, purse, 100, 1)  # the epoch is known
    rows, count = [], 1000
    for at_once in clients:
        capture = Capture(server.address, programs.path("capture"))
        before = counters(server)
        load(gateway, purse, count, at_once)
        after = counters(server)
        there, back = capture.end()
        commands = [f"{(after[name] - before[name]) / count:.2f}" for name in ("cmd_get", "cmd_set")]
        frames, lengths, payloads = zip(there, back)
        figures = [f"{number / count:.2f}" for number in frames]
        figures += [f"{number / count:.0f}" for number in (*payloads, *lengths)]
        rows.append([at_once, *commands, *figures])
    head = ["clients", "keys requested", "`add`s"]
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
