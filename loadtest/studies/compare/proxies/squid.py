"""Squid: one process, and one helper that it queries for each password once in eight hours."""

import subprocess

from .base import PASSWORD, USER, Proxy


class Squid(Proxy):
    name = "squid"
    title = "Squid, Basic"
    program = "squid"
    install = "apt-get install squid"
    configuration = "squid.conf"

    def listener(self):
        return f"http_port 127.0.0.1:{self.port}"

    def files(self):
        hashed = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], capture_output=True, text=True, check=True)
        return {
            "squid.passwd": f"{USER}:{hashed.stdout}",
            self.configuration: f"""\
{self.listener()}
workers {self.setup.workers}
auth_param basic program /usr/lib/squid/basic_ncsa_auth {self.path("squid.passwd")}
auth_param basic children 1 startup=1 idle=1
auth_param basic credentialsttl 8 hours
acl authenticated proxy_auth REQUIRED
http_access allow authenticated
http_access deny all
cache deny all
cache_mem 0 MB
access_log none
cache_log /dev/null
pid_filename none
coredump_dir none
shutdown_lifetime 0 seconds
""",
        }

    def command(self):
        # -N keeps it one process, which is what one worker means; more workers need its master.
        mode = "-N" if self.setup.workers == 1 else "--foreground"
        return [self.found(), mode, "-f", self.path(self.configuration)]


class OverTls(Squid):
    name = "squid-tls"
    title = "Squid, Basic, HTTP/1.1"
    install = "apt-get install squid-openssl"
    tls = True

    @classmethod
    def found(cls):
        """Debian's package squid has no OpenSSL, and its https_port fails."""
        squid = super().found()
        built = subprocess.run([squid, "-v"], capture_output=True, text=True).stdout if squid else ""
        return squid if "--with-openssl" in built else None

    def listener(self):
        made = self.setup.certificate
        return f"https_port 127.0.0.1:{self.port} tls-cert={made.certificate} tls-key={made.key}"
