"""Apache with mod_proxy_connect: a thread for each tunnel. One process, whose threads are there from the start."""

import base64, hashlib, os

from .base import PASSWORD, USER, Proxy

MODULES = "mpm_event authn_core authn_file authz_core authz_user auth_basic proxy proxy_connect"


class Apache(Proxy):
    name = "apache"
    title = "Apache mod_proxy_connect, Basic"
    program = "apache2"
    install = "apt-get install apache2"
    configuration = "apache.conf"
    version_command = ["-v"]

    def files(self):
        modules = [f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in MODULES.split()]
        hashed = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()  # the cheapest hash: it is computed each time
        owner = "User nobody\nGroup nogroup\n" if os.geteuid() == 0 else ""
        threads = max(64, self.setup.idle + 32)
        lines = "\n".join(modules)
        return {
            "apache.passwd": f"{USER}:{{SHA}}{hashed}\n",
            self.configuration: f"""\
{lines}
{owner}ServerName proxy.example
ServerRoot {self.folder}
DefaultRuntimeDir {self.folder}
PidFile {self.path("apache.pid")}
Mutex posixsem
ErrorLog /dev/null
Listen 127.0.0.1:{self.port}
StartServers 1
ServerLimit 1
ThreadLimit {threads}
ThreadsPerChild {threads}
MaxRequestWorkers {threads}
MinSpareThreads 1
MaxSpareThreads {threads}
Timeout 600
ProxyRequests On
ProxyVia Off
AllowCONNECT 1-65535
<Proxy "*">
    AuthType Basic
    AuthName proxy
    AuthBasicProvider file
    AuthUserFile {self.path("apache.passwd")}
    Require valid-user
</Proxy>
""",
        }

    def command(self):
        return [self.found(), "-f", self.path(self.configuration), "-DFOREGROUND"]
