"""Processes to be measured, and what the kernel and memcached say of them. Standard library only."""

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


def binary(name):
    """A binary of ours: where POSTERN_BIN says, or as cargo built it."""
    folder = os.environ.get("POSTERN_BIN") or Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    return str(Path(folder) / name)


def tool(name):
    """A program of the system; Debian keeps some where only root's PATH looks."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not found:
        raise SystemExit(f"{name} is not installed")
    return found


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextlib.contextmanager
def running(arguments, **options):
    """A process, ended when the block is left."""
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def until(what, question):
    """Asks until the answer is not false."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            answer = question()
            if answer:
                return answer
        time.sleep(0.01)
    raise SystemExit(f"waited for {PATIENCE:.0f} s: {what}")


def listens(port):
    until(f"port {port} listens", lambda: socket.create_connection(("127.0.0.1", port)).close() or True)


def is_ready(admin):
    until("a daemon is ready", lambda: urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz").status == 200)


def cpu_us(pid):
    """Microseconds that the threads of a process have been on a CPU, user and kernel together."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def resident(pid):
    """Bytes of memory that a process has to itself and shares."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def slab_sizes(names):
    """Bytes of one kernel object of each of these kinds; empty without the right to look."""
    try:
        lines = Path("/proc/slabinfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[3]) for line in lines if line.split()[0] in names}


def memcached(port, *more):
    return [tool("memcached"), "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-c", "4096", "-M", "-C", "-u", "root", *more]


class Stats:
    """memcached's own counters, over a connection of its own."""

    def __init__(self, port):
        self.port = port

    def read(self):
        with socket.create_connection(("127.0.0.1", self.port)) as stream:
            stream.sendall(b"stats\r\n")
            lines = iter(stream.makefile("r").readline, "END\n")
            pairs = (line.split()[1:3] for line in lines)
            return {name: int(value) for name, value in pairs if value.isdigit()}


class Target:
    """Echoes every byte; after a byte `S` sends zeros until the connection is closed. One thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.listener:
                    stream, _ = self.listener.accept()
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(stream, selectors.EVENT_READ)
                    continue
                with contextlib.suppress(OSError):
                    said = key.fileobj.recv(4096)
                    if said == b"S":
                        selector.unregister(key.fileobj)
                        threading.Thread(target=pour, args=(key.fileobj,), daemon=True).start()
                    elif said:
                        key.fileobj.sendall(said)
                    else:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()


def pour(stream):
    zeros = bytes(1 << 18)
    with contextlib.suppress(OSError):
        while True:
            stream.sendall(zeros)


def tunnel(port, target, value):
    """An open tunnel through which one byte has gone both ways."""
    stream = socket.create_connection(("127.0.0.1", port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {value}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        more = stream.recv(4096)
        if not more:
            raise SystemExit(f"the gateway closed the connection after {head!r}")
        head += more
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the gateway answered {head.splitlines()[0]!r}")
    stream.sendall(b"x")
    if stream.recv(1) != b"x":
        raise SystemExit("another byte came back")
    return stream


def issuer_config(work):
    http, admin = free_port(), free_port()
    text = f'[listen]\naddress = "127.0.0.1:{http}"\nadmin = "127.0.0.1:{admin}"\n[keys]\ndirectory = "{work}/issuer"\n'
    path = Path(work) / "issuer.toml"
    path.write_text(text)
    return str(path), http, admin


def gateway_config(work, issuer, store, more=""):
    """One worker, so that a CPU figure is that of one thread."""
    http, admin = free_port(), free_port()
    path = Path(work) / f"gateway-{http}.toml"
    path.write_text(f"""[listen]
address = "127.0.0.1:{http}"
admin = "127.0.0.1:{admin}"
workers = 1
[issuer]
directory = "http://127.0.0.1:{issuer}/.well-known/private-token-issuer-directory"
[challenge]
issuer_name = "issuer.example"
origin = "proxy.example"
[limits]
connections = 100000
[store]
kind = "memcached"
[store.memcached]
addresses = ["127.0.0.1:{store}"]
timeout = "1s"
{more}
[egress]
private = true
ports = "any"
""")
    return str(path), http, admin


def twemproxy_config(work, server):
    port, path = free_port(), Path(work) / "nutcracker.yml"
    path.write_text(f"postern:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  timeout: 400\n"
                    f"  preconnect: true\n  auto_eject_hosts: false\n  servers:\n  - 127.0.0.1:{server}:1 server0\n")
    return [tool("nutcracker"), "-c", str(path), "-a", "127.0.0.1", "-s", str(free_port())], port
