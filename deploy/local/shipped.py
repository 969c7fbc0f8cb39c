"""The configurations that deploy/ ships, with the addresses of a fleet on loopback. Only what no environment variable
can set is set here.
"""
import os
import re
from pathlib import Path

from components import Failed, program

DEPLOY = Path(__file__).resolve().parents[1]
EXAMPLES = DEPLOY / "examples" / "fleet"


def list_of(items):
    """A list of words, or of such lists, that is valid TOML, YAML and JSON."""
    return "[" + ", ".join(list_of(item) if isinstance(item, list) else f'"{item}"' for item in items) + "]"


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
    """mcrouter if it is installed, twemproxy otherwise. None without both, where one server needs no router."""
    named = os.environ.get("POSTERN_MCROUTER")
    if named and not os.access(named, os.X_OK):
        raise Failed(f"POSTERN_MCROUTER is {named}, which is no program")
    if binary := named or program("mcrouter"):
        return Mcrouter(binary, servers)
    if binary := program("nutcracker"):
        return Twemproxy(binary, servers)
    if len(servers) == 1:
        return None
    raise Failed("there is no router: neither mcrouter (POSTERN_MCROUTER) nor twemproxy (apt-get install nutcracker)")


# deploy/mcrouter/README.md has the reason for each.
MCROUTER_OPTIONS = (
    "-n4096 -r 100 --probe-timeout-max 500 --asynclog-disable --disable-miss-on-get-errors --listen-addresses=127.0.0.1"
)


class Mcrouter:
    kind = "mcrouter"

    def __init__(self, binary, servers):
        self.binary, self.servers = binary, servers

    def config(self, _port):
        text = (DEPLOY / "mcrouter" / "single.json").read_text()
        return re.sub(r'("servers": )\[[^]]*\]', lambda found: found[1] + list_of(self.servers), text)

    def command(self, port, path, _ports):
        return [self.binary, "-p", port, "-f", path, *MCROUTER_OPTIONS.split()]


class Twemproxy:
    kind = "twemproxy"

    def __init__(self, binary, servers):
        self.binary, self.servers = binary, servers

    def config(self, port):
        text = (DEPLOY / "twemproxy" / "nutcracker.yml").read_text()
        head = re.sub(r"listen: .*", f"listen: 127.0.0.1:{port}", text[: text.index("  servers:")])
        servers = (f"    - {server}:1 spent-{number}\n" for number, server in enumerate(self.servers, 1))
        return head + "  servers:\n" + "".join(servers)

    def command(self, port, path, ports):
        # Its log beside the others': Debian's writes to /var/log/nutcracker by itself, which only root may.
        log, statistics = "/dev/stderr", ports.of(f"statistics of the router at {port}")
        return [self.binary, "-c", path, "-o", log, "-a", "127.0.0.1", "-s", statistics]
