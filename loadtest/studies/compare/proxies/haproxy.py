"""HAProxy as a plain TCP relay: no parsing, no authentication, one configured target. No proxy can do less."""

from rig.net import listens

from .base import Proxy


class Haproxy(Proxy):
    name = "haproxy"
    title = "HAProxy, plain TCP relay (the floor)"
    program = "haproxy"
    install = "apt-get install haproxy"
    configuration = "haproxy.cfg"
    version_command = ["-v"]

    def files(self):
        return {
            self.configuration: f"""\
global
    nbthread {self.setup.workers}
    maxconn 8000
defaults
    mode tcp
    timeout connect 10s
    timeout client 10m
    timeout server 10m
frontend relay
    bind 127.0.0.1:{self.port}
    default_backend target
backend target
    server target {self.target}
"""
        }

    def command(self):
        return [self.found(), "-db", "-f", self.path(self.configuration)]

    def credentials(self, _count):
        return ["--direct"]

    def ready(self):
        return listens(f"127.0.0.1:{self.port}")
