"""tinyproxy: a thread for each connection, so it cannot be limited to one."""

from .base import PASSWORD, USER, Proxy


class Tinyproxy(Proxy):
    name = "tinyproxy"
    title = "tinyproxy, Basic"
    program = "tinyproxy"
    install = "apt-get install tinyproxy"
    configuration = "tinyproxy.conf"
    version_command = ["-v"]

    def files(self):
        return {
            self.configuration: f"""\
Port {self.port}
Listen 127.0.0.1
MaxClients 8000
Timeout 600
LogLevel Critical
DisableViaHeader Yes
BasicAuth {USER} {PASSWORD}
"""
        }

    def command(self):
        return [self.found(), "-d", "-c", self.path(self.configuration)]
