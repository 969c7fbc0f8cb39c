"""Certificates for TLS on loopback, by openssl."""

import os, subprocess
from typing import NamedTuple
from .binaries import needed

P256 = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]


class Certificate(NamedTuple):
    """Paths: a server's certificate and key, both in one file, and the authority to trust."""

    certificate: str
    key: str
    both: str
    ca: str

    def section(self):
        """The keys of a daemon's section `[tls]`."""
        return {"certificate": self.certificate, "key": self.key}


def make(home):
    """An authority, and a certificate of it for 127.0.0.1 and localhost with a key on P-256, in the new folder `home`."""
    os.mkdir(home, 0o755)
    with open(f"{home}/ext", "w") as file:
        file.write("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    quiet = {"check": True, "cwd": home, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    request, days = [needed("openssl"), "req", *P256], ["-days", "30"]
    subprocess.run([*request, "-x509", *days, "-subj", "/CN=a", "-keyout", "ca.key", "-out", "ca.pem"], **quiet)
    subprocess.run([*request, "-subj", "/CN=localhost", "-keyout", "key", "-out", "csr"], **quiet)
    sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "crt", "-extfile", "ext", *days]
    subprocess.run(["openssl", "x509", "-req", "-in", "csr", *sign], **quiet)
    with open(f"{home}/both", "w") as both:
        for name in ("crt", "key"):
            with open(f"{home}/{name}") as file:
                both.write(file.read())
    os.chmod(f"{home}/key", 0o600)
    return Certificate(*(f"{home}/{name}" for name in ("crt", "key", "both", "ca.pem")))
