"""nghttpx with Squid behind it: the one ends TLS and HTTP/2, the other checks the password and opens the tunnel."""

from rig.binaries import program
from rig.net import listens

from .base import Proxy
from .squid import Squid


class OverTls(Proxy):
    name = "nghttpx-tls"
    title = "nghttpx and Squid, Basic, HTTP/1.1"
    program = "nghttpx"
    install = "apt-get install nghttp2-proxy squid"
    configuration = "nghttpx.conf"
    version_pattern = r"(?<=nghttp2/)\d+\.\d+\.\d+"
    tls = True

    def __init__(self, setup, number):
        super().__init__(setup, number)
        self.squid = Squid(setup, number, self.path("squid"))

    @classmethod
    def found(cls):
        return program(cls.program) if Squid.found() else None

    def files(self):
        text = f"""\
frontend=127.0.0.1,{self.port}
backend=127.0.0.1,{self.squid.port}
http2-proxy=yes
workers={self.setup.workers}
private-key-file={self.setup.certificate.key}
certificate-file={self.setup.certificate.certificate}
no-ocsp=yes
errorlog-file=/dev/stderr
backend-connections-per-host=8000
frontend-read-timeout=10m
frontend-write-timeout=10m
frontend-http2-read-timeout=10m
stream-read-timeout=0
backend-read-timeout=10m
backend-write-timeout=10m
"""
        return {self.configuration: text}

    def command(self):
        return [self.found(), f"--conf={self.path(self.configuration)}"]

    def start(self):
        self.squid.start()
        super().start()

    def stop(self):
        super().stop()
        self.squid.stop()

    def ready(self):
        return listens(f"127.0.0.1:{self.port}")

    def output(self):
        return super().output() + self.squid.output()

    def pids(self):
        """Both programs are one proxy."""
        both = [pid for proxy in (super(), self.squid) for of in proxy.pids().values() for pid in of]
        return {self.name: both}


class Http2(OverTls):
    name = "nghttpx-h2"
    title = "nghttpx and Squid, Basic, HTTP/2"
    http2 = True
    resets, fewest = True, 4  # it does not pass on the end of a stream
