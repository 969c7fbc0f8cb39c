"""Descriptors at the limit: honest clients are connected, an attacker takes what is left, then they present their
tokens."""

import collections, os, re, signal, time
from abuse import honest
from abuse.swarm import Swarm
from rig.net import connect
from rig.programs import served

NUMBER = 100


def scenarios(stage):
    stage.issuer()
    for files, name in (("-S 256", "soft limit 256, hard limit higher"), ("256", "hard limit 256")):
        gateway = stage.gateway(files=files)
        first, *values = stage.mint(gateway, NUMBER + 1)
        present(connect(gateway.address), first, "127.0.0.1:1")  # the store has its file open from now on
        with open(f"/proc/{gateway.pid}/limits") as file:
            soft = re.search(r"open files +(\d+)", file.read())[1]
        before, began = warnings(gateway), time.monotonic()
        outcome = beside(gateway, values)
        lines = (warnings(gateway) - before) / (time.monotonic() - began)
        time.sleep(11)  # what the attacker held is closed
        again = collections.Counter(present(connect(gateway.address), value, "127.0.0.1:1") for value in values)
        remark = f"limit in the process: {soft}; tokens spent for nothing: "
        remark += f"{again['407 spent'] - outcome['served']}; log lines a second: {lines:.0f}"
        yield f"gateway: {NUMBER} tokens when descriptors are at the limit, {name}", outcome, None, None, remark
        stage.stop(gateway)


def warnings(program):
    with open(program.log) as file:
        return sum("WARN" in line for line in file)


def beside(gateway, values):
    to, child = served(honest.target)
    clients = [connect(gateway.address) for _ in values]
    try:
        with Swarm(gateway.address, 300, b"", again=True):
            time.sleep(3)
            outcomes = collections.Counter(present(stream, value, to) for stream, value in zip(clients, values))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    outcomes["served"] = outcomes.pop("200", 0)
    return outcomes


def present(stream, value, to):
    """The status of one CONNECT, and "spent" where the gateway says so."""
    stream.settimeout(honest.PATIENCE)
    try:
        stream.sendall(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {value}\r\n\r\n".encode())
        answer = stream.recv(65536).decode()
        return (answer[9:12] or "closed") + (" spent" if "already spent" in answer else "")
    except OSError as error:
        return type(error).__name__
    finally:
        stream.close()
