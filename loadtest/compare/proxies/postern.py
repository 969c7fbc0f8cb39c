"""Postern, with each of its stores. It verifies and spends a token for each tunnel."""

import os, shutil, urllib.request

from .base import Proxy, free_port

GATEWAY = """\
[listen]
address = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
workers = {workers}
[issuer]
directory = "{issuer}/.well-known/private-token-issuer-directory"
[challenge]
issuer_name = "issuer.example"
origin = "proxy.example"
[egress]
private = true
ports = "any"
"""
EMBEDDED = """\
[store]
path = "spent"
"""
# The deadlines are long, so that a busy machine makes an answer late and not a refusal.
MEMCACHED = """\
[store]
kind = "memcached"
[store.memcached]
addresses = ["127.0.0.1:{port}"]
transport = "{transport}"
timeout = "5s"
checkout_timeout = "5s"
"""
ISSUER = """\
[listen]
address = "127.0.0.1:{port}"
admin = "127.0.0.1:{admin}"
[keys]
directory = "keys"
"""


def says_ready(admin):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


class Gateway(Proxy):
    program = "postern"
    install = "cargo build --release --locked -p postern, or POSTERN_BINARY"
    configuration = "gateway.toml"

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.admin = free_port()
        self.used = 0

    @classmethod
    def found(cls, setup):
        return setup.binary if os.access(setup.binary, os.X_OK) else None

    def store(self):
        raise NotImplementedError

    def files(self):
        text = GATEWAY.format(port=self.port, admin=self.admin, workers=self.setup.workers, issuer=self.setup.issuer)
        return {self.configuration: text + self.store()}

    def command(self):
        return [self.setup.binary, "gateway", "--config", self.path(self.configuration)]

    def ready(self):
        # Its admin page is there a moment before it is, so first the log has to say that it listens.
        return "the gateway listens on" in self.output() and says_ready(self.admin)

    def credentials(self, count):
        """Tokens that this gateway has not seen. Its store is its own, so another gateway may have spent them."""
        skip, self.used = self.used, self.used + count
        return ["--tokens", self.setup.tokens, "--skip", str(skip)]


class Embedded(Gateway):
    name = "postern-embedded"
    title = "Postern, embedded store"

    def store(self):
        return EMBEDDED


class WithMemcached(Gateway):
    """A memcached of its own, with one thread."""

    transport = ""

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.memcached = free_port()

    @classmethod
    def found(cls, setup):
        return super().found(setup) if shutil.which("memcached") else None

    def store(self):
        return MEMCACHED.format(port=self.memcached, transport=self.transport)

    def beside(self):
        user = ["-u", "root"] if os.geteuid() == 0 else []
        where = ["-l", "127.0.0.1", "-p", str(self.memcached)]
        return {"memcached": ["memcached", *where, "-t", "1", "-m", "256", "-M", "-c", "1024", *user]}


class Pipelined(WithMemcached):
    name = "postern-memcached-pipelined"
    title = "Postern, memcached pipelined"
    together = "Postern and memcached, pipelined"
    transport = "pipelined"


class Pooled(WithMemcached):
    name = "postern-memcached-pooled"
    title = "Postern, memcached pooled"
    together = "Postern and memcached, pooled"
    transport = "pooled"


class Issuer(Proxy):
    """Not compared: it makes the tokens."""

    name = "issuer"
    title = "Postern's issuer"

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.admin = free_port()

    def files(self):
        return {"issuer.toml": ISSUER.format(port=self.port, admin=self.admin)}

    def command(self):
        return [self.setup.binary, "issuer", "--config", self.path("issuer.toml")]

    def ready(self):
        return super().ready() and says_ready(self.admin)
