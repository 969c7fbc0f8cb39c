"""The programs that are measured, each on free ports of loopback, and stopped at the end."""

import os, shutil, signal, socket, subprocess, sys, tempfile, time, urllib.error, urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
POSTERN = os.environ.get("POSTERN_BINARY", os.path.join(ROOT, "target/release/postern"))
PATIENCE = 60  # seconds until a program that does not answer is given up: a busy machine is slow, not broken

# deploy/twemproxy/nutcracker.yml with servers of our own.
TWEMPROXY = """spent:
  listen: {listen}
  hash: fnv1a_64
  distribution: ketama
  auto_eject_hosts: false
  timeout: {timeout}
  preconnect: true
  servers:
"""

ISSUER = """[listen]
address = "{address}"
admin = "{admin}"
[keys]
directory = "{home}"
"""

GATEWAY = """[listen]
address = "{address}"
admin = "{admin}"
workers = {workers}
[issuer]
directory = "{issuer}/.well-known/private-token-issuer-directory"
[challenge]
issuer_name = "issuer.example"
origin = "proxy.example"
[egress]
private = true
ports = "any"
[limits]
connections = 100000
idle_timeout = "1h"
header_timeout = "{patience}"
"""


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


def connect(address):
    host, port = address.split(":")
    stream = socket.create_connection((host, int(port)), timeout=PATIENCE)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def wait_until(what, true):
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > PATIENCE:
            sys.exit(f"{what} within {PATIENCE} s: no")
        time.sleep(0.01)


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def listens(address):
    try:
        connect(address).close()
        return True
    except ConnectionError:
        return False


class Program:
    """A process, and the address that it serves."""

    def __init__(self, name, command, address, log, admin=None, environment=None):
        self.name, self.address, self.admin = name, address, admin
        self.log = open(log, "wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        self.pid = self.process.pid

    def ready(self):
        def now():
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended at its start: " + open(self.log.name, errors="replace").read()[-2000:])
            if not self.admin:
                return listens(self.address)
            # The admin page answers before all that /readyz speaks of is known: only then does the daemon listen.
            with open(self.log.name, "rb") as log:
                told = f"listens on {self.address}".encode() in log.read()
            return told and answers(f"http://{self.admin}/readyz")

        wait_until(f"{self.name} is ready", now)
        return self

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


class Programs:
    """Starts programs in a directory of their own; leaving the `with` block stops them and removes it."""

    def __enter__(self):
        for needed in (POSTERN, "memcached"):
            if not shutil.which(needed):
                sys.exit(f"{needed} is missing: cargo build --release --locked, apt-get install memcached")
        self.home = tempfile.mkdtemp(prefix="postern-loadtest-")
        self.running, self.number, self.issuer_url = [], 0, None
        return self

    def __exit__(self, *_):
        for program in reversed(self.running):
            program.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self, *programs):
        for program in programs:
            program.stop()
            self.running.remove(program)

    def path(self, name):
        self.number += 1
        return os.path.join(self.home, f"{self.number}-{name}")

    def start(self, name, command, address, **rest):
        program = Program(name, command, address, self.path(name + ".log"), **rest)
        self.running.append(program)
        return program.ready()

    def config(self, name, text):
        path = self.path(name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def memcached(self, megabytes=256):
        """One server with one thread, which refuses to evict: `-M`, as `deploy/` runs it."""
        address = free_address()
        host, port = address.split(":")
        command = ["memcached", "-l", host, "-p", port, "-U", "0", "-t", "1", "-m", str(megabytes), "-M", "-c", "4096"]
        if os.geteuid() == 0:
            command += ["-u", "root"]
        return self.start("memcached", command, address)

    def twemproxy(self, servers, timeout=100):
        """One process before `servers`; `timeout` in milliseconds."""
        if not shutil.which("nutcracker"):
            sys.exit("nutcracker is missing: apt-get install nutcracker")
        address, stats = free_address(), free_address()
        text = TWEMPROXY.format(listen=address, timeout=timeout)
        text += "".join(f"    - {server.address}:1 spent-{n + 1}\n" for n, server in enumerate(servers))
        host, port = stats.split(":")
        command = ["nutcracker", "-c", self.config("nutcracker.yml", text), "-a", host, "-s", port]
        return self.start("twemproxy", command, address)

    def issuer(self):
        """One issuer of one key, and no rotation meanwhile."""
        address, admin = free_address(), free_address()
        text = ISSUER.format(address=address, admin=admin, home=self.path("keys"))
        command = [POSTERN, "issuer", "--config", self.config("issuer.toml", text)]
        self.issuer_url = f"http://{address}"
        return self.start("issuer", command, address, admin=admin)

    def gateway(self, store, workers=1, patience="10s"):
        """A gateway with the section `[store]` given as text; it closes connections that ask nothing for `patience`."""
        address, admin = free_address(), free_address()
        text = GATEWAY.format(address=address, admin=admin, workers=workers, issuer=self.issuer_url, patience=patience)
        text += store
        command = [POSTERN, "gateway", "--config", self.config("gateway.toml", text)]
        return self.start("gateway", command, address, admin=admin)


def shared(address, transport, **more):
    """A `[store]` section for memcached. The process's own memory of spent keys is off: every check asks the store."""
    keys = {"addresses": [address], "transport": transport, "spent_cache": "0B"} | more
    lines = ["[store]", 'kind = "memcached"', "[store.memcached]"]
    for key, value in keys.items():
        shown = str(value).replace("'", '"') if isinstance(value, (list, int)) else f'"{value}"'
        lines.append(f"{key} = {shown}")
    return "\n".join(lines) + "\n"


def embedded(path):
    """A `[store]` section for the embedded store."""
    return f'[store]\nkind = "embedded"\npath = "{path}"\n'
