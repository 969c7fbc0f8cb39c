"""Postern, with each of its stores. It verifies and spends a token for each tunnel."""

from rig import binaries, configs
from rig.net import free_port, is_ready
from rig.programs import memcached_command

from .base import Proxy


class Gateway(Proxy):
    program = "postern"
    install = "cargo build --release --locked -p postern, or POSTERN_BINARY"
    configuration = "gateway.toml"

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.admin = free_port()
        self.used = 0

    @classmethod
    def found(cls):
        return binaries.POSTERN if binaries.runs(binaries.POSTERN) else None

    def store(self):
        raise NotImplementedError

    def files(self):
        address, admin = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.admin}"
        tls = self.setup.certificate.section() if self.tls else None
        more = {"tls": tls, "udp": self.udp, "limits": configs.LIMITS if self.setup.idle > 5000 else None}
        text = configs.gateway(address, admin, self.setup.issuer, self.store(), self.setup.workers, **more)
        return {self.configuration: text}

    def command(self):
        return [binaries.POSTERN, "gateway", "--config", self.path(self.configuration)]

    def ready(self):
        return is_ready(f"127.0.0.1:{self.admin}")

    def credentials(self, count):
        """Tokens of this gateway that were not presented yet."""
        skip, self.used = self.used, self.used + count
        return ["--tokens", self.tokens, "--skip", str(skip)]


class Embedded(Gateway):
    name = "postern-embedded"
    title = "Postern, embedded store"

    def store(self):
        return configs.embedded("spent")


class Before(Embedded):
    """Another build of the gateway, to see what a change costs: the program that POSTERN_BEFORE names."""

    name = "postern-before"
    title = "Postern before, embedded store"
    install = "POSTERN_BEFORE names another build"

    @classmethod
    def found(cls):
        return binaries.BEFORE if binaries.runs(binaries.BEFORE) else None

    def command(self):
        return [binaries.BEFORE, *super().command()[1:]]


class OverTls(Embedded):
    name = "postern-tls"
    title = "Postern, HTTP/1.1"
    tls = True


class Http2(OverTls):
    name = "postern-h2"
    title = "Postern, HTTP/2"
    http2 = True


class Udp(Http2):
    name = "postern-udp"
    title = "Postern, embedded store"
    udp = True
    resets, fewest = True, 4  # as Envoy needs it


class WithMemcached(Gateway):
    """A memcached of its own, with one thread."""

    transport = ""

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.memcached = free_port()

    @classmethod
    def found(cls):
        return super().found() if binaries.program("memcached") else None

    def store(self):
        # Long deadlines, so that a busy machine delays an answer and does not cause a refusal.
        patient = {"timeout": "5s"}
        return configs.memcached(f"127.0.0.1:{self.memcached}", transport=self.transport, **patient)

    def beside(self):
        return {"memcached": memcached_command(f"127.0.0.1:{self.memcached}", connections=1024)}


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
        return {"issuer.toml": configs.issuer(f"127.0.0.1:{self.port}", f"127.0.0.1:{self.admin}", "keys")}

    def command(self):
        return [binaries.POSTERN, "issuer", "--config", self.path("issuer.toml")]

    def ready(self):
        return is_ready(f"127.0.0.1:{self.admin}")
