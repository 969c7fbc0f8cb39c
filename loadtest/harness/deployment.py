"""The deployment under load: `postern up` or a fleet, started here, or one that runs already."""

import contextlib, os, shlex, subprocess, sys, time
from pathlib import Path
from rig import ROOT, Failed, programs
from rig.binaries import postern
from rig.net import get


FLEET = Path(ROOT) / "deploy/local/fleet"
PATIENCE = 180  # seconds for a whole fleet to start or to stop


def metrics(admin):
    """All series of an admin listener: {'name{labels}': value}."""
    rows = (line.rsplit(" ", 1) for line in get(f"{admin}/metrics").splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in rows}


class Deployment:
    """Addresses and process ids. An unknown one is None or empty, and checks that need it are left out."""

    def __init__(self, described, gateways, admins=(), issuer=None, agent=None):
        self.described = described
        self.gateways, self.admins, self.issuer, self.agent = list(gateways), list(admins), issuer, agent
        self.issuer_admin = self.agent_admin = None
        self.pids = {}  # name, such as gateway-1 -> process id
        self.memcached = []  # host:port
        self.parent = None  # the process id of the fleet's script
        self.alone = False  # started by this run: no other client sends requests
        self._stop = contextlib.ExitStack()

    def stop(self):
        self._stop.close()

    def all_admins(self):
        """{name: admin URL} of every daemon that has one; daemons of one process appear once."""
        named = {f"gateway-{number}": url for number, url in enumerate(self.admins, 1)}
        named |= {"issuer": self.issuer_admin, "agent": self.agent_admin}
        seen = {}
        for name, url in named.items():
            if url and url not in seen.values():
                seen[name] = url
        return seen

    def memcached_pids(self):
        return [pid for name, pid in self.pids.items() if name.startswith("memcached")]

    def opened(self):
        """Tunnels that the gateways opened since they started, or None without an admin address."""
        if not self.admins:
            return None
        return sum(metrics(admin).get('postern_requests_total{outcome="opened"}', 0) for admin in self.admins)


def running(arguments):
    """The deployment that the addresses on the command line name."""
    admins = arguments.admin or []
    return Deployment("a given deployment", arguments.gateway, admins, arguments.issuer, arguments.agent)


def of_env(path, described="a given fleet"):
    """The deployment that a file of deploy/local/fleet names."""
    facts = {}
    for word in shlex.split(Path(path).read_text(), comments=True):
        name, separator, value = word.partition("=")
        if separator:
            facts[name.removeprefix("export ")] = value
    if "GATEWAYS" not in facts:
        raise Failed(f"{path} names no GATEWAYS")
    words = lambda name: facts.get(name, "").split()
    one = lambda name: facts.get(name) or None
    found = Deployment(described, words("GATEWAYS"), words("ADMINS"), one("ISSUER"), one("AGENT"))
    found.issuer_admin, found.agent_admin = one("ISSUER_ADMIN"), one("AGENT_ADMIN")
    for kind in ("gateway", "memcached", "router"):
        for number, pid in enumerate(words(f"{kind.upper()}_PIDS"), 1):
            found.pids[f"{kind}-{number}"] = int(pid)
    for kind in ("issuer", "agent"):
        if one(f"{kind.upper()}_PID"):
            found.pids[kind] = int(facts[f"{kind.upper()}_PID"])
    found.memcached = words("MEMCACHED")
    found.parent = int(facts["FLEET_PID"]) if "FLEET_PID" in facts else None
    return found


def start_up(home):
    """`postern up` on free ports."""
    process, addresses = programs.start_up(home)
    url = lambda name: f"http://{addresses[name]}"
    found = Deployment(
        "`postern up`: one process, the embedded store",
        [url("gateway")], [url("admin")], url("issuer"), url("agent"))
    found.alone = True
    found.pids = {"gateway-1": process.pid}
    found._stop.callback(programs.end, process, patience=PATIENCE)
    return found


def start_fleet(home, memcached=3, routers=None, gateways=2, env=None):
    """deploy/local/fleet, without monitoring."""
    data = home / "fleet"
    command = [FLEET, "--binary", postern(), "--data", data, "--open-egress", "--memcached", memcached,
               "--gateways", gateways, "--without", "jaeger,prometheus,grafana"]
    command += ["--routers", routers] if routers else []
    with open(home / "fleet.out", "wb") as out:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, **(env or {})})
    deadline = time.monotonic() + PATIENCE
    while not (data / "fleet.env").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            programs.end(process)
            raise Failed(f"deploy/local/fleet did not start:\n{(home / 'fleet.out').read_text()}")
        time.sleep(0.05)
    plural = lambda count, word: f"{count} {word}" + ("s" if count > 1 else "")
    found = of_env(data / "fleet.env")
    routers = sum(name.startswith("router") for name in found.pids)
    found.described = (f"{plural(gateways, 'gateway')}, {plural(routers, 'router')} and {memcached} memcached by "
                       "deploy/local/fleet")
    found.alone = True
    found._stop.callback(programs.end, process, patience=PATIENCE)
    return found


class Target:
    """target.py, which runs as long as this process."""

    def __init__(self, hold=3):
        command = [sys.executable, Path(__file__).with_name("target.py"), str(hold)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ports = self.process.stdout.readline().split()
        if len(ports) != 2:
            raise Failed("the target of the tunnels does not start")
        self.answering, self.holding = (f"127.0.0.1:{port}" for port in ports)

    def stop(self):
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)


def mint(deployment, count, out):
    """Mints `count` tokens into the file `out`."""
    if not deployment.issuer:
        raise Failed("tokens are needed, and no issuer is named (--issuer URL)")
    command = [postern(), "token", "mint", "--issuer", deployment.issuer, "--gateway", deployment.gateways[0],
               "--count", str(count), "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"the tokens cannot be minted: {done.stderr.strip()}")
