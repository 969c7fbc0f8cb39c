"""What deploy/local/fleet runs: processes, their ports, and the requests that show whether they are ready."""
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the environment


class Failed(Exception):
    """The fleet cannot be started; the text is the reason."""


def die_with_parent():
    """In the child: SIGKILL when this script ends, for any reason. 1 is PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Component:
    """A program of the fleet, with its process and its log."""

    def __init__(self, name, command, logs, env):
        self.name, self.log = name, logs / f"{name}.log"
        self.end_reported = False
        with open(self.log, "wb") as log:
            # Its own session, so that Ctrl-C in the terminal reaches only this script, which stops all in order.
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **env}, start_new_session=True, preexec_fn=die_with_parent)

    @property
    def pid(self):
        return self.process.pid

    def runs(self):
        return self.process.poll() is None

    def end_report(self):
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"{self.name} {how}. {self.log} ends:", *(f"    {line}" for line in lines)])


class Ports:
    """The ports that options fix, and free ones for the rest."""

    def __init__(self, fixed, first):
        self.fixed, self.next, self.taken = fixed, first, set(fixed.values())
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            # Below those that the kernel gives to outgoing connections, which would take them.
            self.range = (10000, max(int(file.read().split()[0]), 11000))

    def of(self, name):
        if name not in self.fixed:
            self.fixed[name] = self._following() if self.next else self._free()
            self.taken.add(self.fixed[name])
        return self.fixed[name]

    def _following(self):
        while self.next in self.taken:
            self.next += 1
        return self.next

    def _free(self):
        for _ in range(1000):
            port = random.randrange(*self.range)
            if port not in self.taken and is_free(port):
                return port
        raise Failed("no free port was found")


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def program(name, *more):
    """The path of a program, or None. Debian installs some in folders that only root's PATH has."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    paths = [found, *more]
    return next((path for path in paths if path and os.access(path, os.X_OK)), None)


def answers_version(port):
    """None, or the problem. memcached and routers answer `version`; other commands depend on the servers behind."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
            stream.sendall(b"version\r\n")
            return None if stream.recv(64).startswith(b"VERSION") else "no VERSION yet"
    except OSError as error:
        return str(error)


def answers_ok(url):
    try:
        with DIRECT.open(url, timeout=5):
            return None
    except urllib.error.HTTPError as error:
        return error.read(1000).decode(errors="replace").strip() or str(error)
    except OSError as error:
        return str(error)


def accepts(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return None
    except OSError as error:
        return str(error)
