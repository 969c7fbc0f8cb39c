"""Squid: one process, and one helper that it queries for each password once in eight hours."""

import subprocess

from .base import PASSWORD, USER, Proxy


class Squid(Proxy):
    name = "squid"
    title = "Squid, Basic"
    program = "squid"
    install = "apt-get install squid"
    configuration = "squid.conf"

    def files(self):
        hashed = subprocess.run(["openssl", "passwd", "-apr1", PASSWORD], capture_output=True, text=True, check=True)
        return {
            "squid.passwd": f"{USER}:{hashed.stdout}",
            self.configuration: f"""\
http_port 127.0.0.1:{self.port}
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
