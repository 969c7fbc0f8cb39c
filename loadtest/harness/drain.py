"""Stops gateways with SIGTERM, and reads their exit codes."""

import os, signal, time
from contextlib import contextmanager

PATIENCE = 60  # seconds; the drain deadline of a gateway is 30 s by default, and its tunnels are closed by then


@contextmanager
def held_still(pid):
    """Stops the parent for a moment, so that it does not collect an exit code before it is read here."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def exit_code(pid):
    """The exit code of a process that ended and was not collected, or None while it runs. Field 52 of stat has it."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None


def drain(pids, parent):
    """{name: (exit code, seconds)}; the code is None if the process did not stop in time."""
    found = {}
    with held_still(parent):
        began = time.monotonic()
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        while len(found) < len(pids) and time.monotonic() - began < PATIENCE:
            for name, pid in pids.items():
                if name not in found and (code := exit_code(pid)) is not None:
                    found[name] = code, time.monotonic() - began
            time.sleep(0.02)
    return {name: found.get(name, (None, PATIENCE)) for name in pids}
