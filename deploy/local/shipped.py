"""The configurations that deploy/ ships, with the addresses of a fleet on loopback. Only what no environment variable
can set is set here.
"""
import os
import re
import subprocess
from pathlib import Path

from components import Failed, program

DEPLOY = Path(__file__).resolve().parents[1]
EXAMPLES = DEPLOY / "examples" / "fleet"


def list_of(words):
    """A list that is valid TOML, YAML and JSON."""
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


def issuer_without_accounts():
    text = (EXAMPLES / "issuer.toml").read_text()
    return text[: text.index("# Anything but loopback needs")]


def prometheus(targets):
    """`targets` has a list of URLs for each job."""
    text = (EXAMPLES / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/rules", str(DEPLOY / "prometheus" / "rules"))
    for job, urls in targets.items():
        addresses = [url.removeprefix("http://") for url in urls]
        place = rf"(job_name: postern-{job}\n(?:.*\n)*?.*targets: )\[.*\]"
        text = re.sub(place, lambda found: found[1] + list_of(addresses), text, count=1)
    return text


def router(servers):
    """mcrouter if it is installed, because it supports a quorum; twemproxy otherwise."""
    named = os.environ.get("POSTERN_MCROUTER")
    if named and not os.access(named, os.X_OK):
        raise Failed(f"POSTERN_MCROUTER is {named}, which is no program")
    if binary := named or program("mcrouter"):
        return Mcrouter(binary, servers)
    if binary := program("nutcracker"):
        return Twemproxy(binary, servers)
    raise Failed("there is no router: neither mcrouter (POSTERN_MCROUTER) nor twemproxy (apt-get install nutcracker)")


class Mcrouter:
    def __init__(self, binary, servers):
        self.binary = binary
        # A quorum where there are servers for it; each of its three pools gets every third one.
        name, pools = ("quorum.json", 3) if len(servers) >= 3 else ("single.json", 1)
        self.kind = "mcrouter: three replicas, two decide" if pools == 3 else "mcrouter: one pool"
        lists = iter([list_of(servers[pool::pools]) for pool in range(pools)])
        text = (DEPLOY / "mcrouter" / name).read_text()
        self.text = re.sub(r'("servers": )\[[^]]*\]', lambda found: found[1] + next(lists), text)

    def config(self, _port):
        return self.text

    def command(self, port, path, _ports):
        # Newer versions refuse options that older ones need: deploy/mcrouter/README.md.
        usage = subprocess.run([self.binary, "--help"], capture_output=True, text=True, check=False)
        usage = usage.stdout + usage.stderr
        wanted = {
            "--asynclog-disable": [],
            "--disable-miss-on-get-errors": [],
            "--probe-delay-initial-ms": ["100"],  # how soon a server that failed once is tried again
            "--probe-timeout-max": ["500"],
            "--listen-addresses": ["127.0.0.1"],
            "--connection-limit": ["4096"],
        }
        options = (word for name, value in wanted.items() if name in usage for word in (name, *value))
        return [self.binary, "-p", port, "-f", path, *options]


class Twemproxy:
    kind = "twemproxy: each server owns its share of the keys"

    def __init__(self, binary, servers):
        self.binary, self.servers = binary, servers

    def config(self, port):
        text = (DEPLOY / "twemproxy" / "nutcracker.yml").read_text()
        head = re.sub(r"listen: .*", f"listen: 127.0.0.1:{port}", text[: text.index("  servers:")])
        servers = (f"    - {server}:1 spent-{number}\n" for number, server in enumerate(self.servers, 1))
        return head + "  servers:\n" + "".join(servers)

    def command(self, port, path, ports):
        return [self.binary, "-c", path, "-a", "127.0.0.1", "-s", ports.of(f"statistics of the router at {port}")]
