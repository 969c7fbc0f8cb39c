"""HAProxy as a plain TCP relay: no parsing, no authentication, one configured target. No proxy can do less. Over TLS the
same; over HTTP/2 it parses the CONNECT, checks a password and passes the request on to the target, which answers it."""

from rig.net import listens

from .base import Proxy, basic


class Haproxy(Proxy):
    name = "haproxy"
    title = "HAProxy, plain TCP relay (the floor)"
    program = "haproxy"
    install = "apt-get install haproxy"
    configuration = "haproxy.cfg"
    version_command = ["-v"]
    answers = False
    mode = "tcp"

    def bind(self):
        return f"bind 127.0.0.1:{self.port}"

    def files(self):
        return {
            self.configuration: f"""\
global
    nbthread {self.setup.workers}
    maxconn 8000
defaults
    mode {self.mode}
    timeout connect 10s
    timeout client 10m
    timeout server 10m
frontend relay
    {self.bind()}
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


class OverTls(Haproxy):
    name = "haproxy-tls"
    title = "HAProxy, TLS to a TCP relay (the floor)"
    tls = True

    def bind(self):
        return f"{super().bind()} ssl crt {self.setup.certificate.both}"


class Http2(Haproxy):
    name = "haproxy-h2"
    title = "HAProxy, Basic, HTTP/2, to one target"
    answers = True
    tls = http2 = True
    mode = "http"

    def bind(self):
        # Its own http_auth looks for Authorization here, even in a CONNECT.
        return f"""\
bind 127.0.0.1:{self.port} ssl crt {self.setup.certificate.both} alpn h2
    http-request deny deny_status 407 unless {{ req.hdr(proxy-authorization) -m str "{basic()}" }}"""

    def credentials(self, _count):
        return ["--authorization", basic()]
