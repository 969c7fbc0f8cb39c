"""The daemons under attack, with the settings of the product's defaults unless a scenario names others."""

import base64, hashlib, json, os, subprocess
from rig import certificates, configs
from rig.binaries import postern
from rig.net import free_address, get
from rig.programs import Programs

ACCOUNT = '[[accounts]]\nname = "{name}"\nkey_sha256 = "{hash}"\nquota = "{quota}"\n'
GATEWAY = {"issuer_name": "issuer.example", "origin": "proxy.example"}
# Every client here is on loopback, which is exempt by default.
NOT_EXEMPT = {"exempt": []}
OPEN = '[egress]\nprivate = true\nports = "any"\n'


class Stage(Programs):
    """`files` limits the descriptors of a daemon: "256" (both limits) or "-S 256" (the soft one)."""

    def command(self, name, config, files=None, within=()):
        command = [*within, postern(), name, "--config", self.config(f"{name}.toml", config)]
        return ["bash", "-c", f'ulimit -n {files}; exec "$@"', "bash", *command] if files else command

    def issuer(self, accounts=(), tls=None, keys=None, address=None, admin=None, **limits):
        """`accounts` are (name, API key, quota)."""
        address, admin = address or free_address(), admin or free_address()
        text = configs.issuer(address, admin, keys or self.path("keys"))
        text += (configs.section("limits", limits) if limits else "") + configs.section("limits.source", NOT_EXEMPT)
        text += configs.section("tls", tls) if tls else ""
        self.issuer_url = f"http{'s' if tls else ''}://{address}"
        if accounts:
            file = self.config("issuer.toml", text)
            hashed = ((name, hashlib.sha256(key.encode()).hexdigest(), quota) for name, key, quota in accounts)
            declared = "".join(ACCOUNT.format(name=name, hash=hash, quota=quota) for name, hash, quota in hashed)
            command = [postern(), "issuer", "account", "apply", self.config("accounts.toml", declared), "--config", file]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return self.start("issuer", self.command("issuer", text), address, admin)

    def gateway(self, tls=None, egress=OPEN, files=None, within=(), addresses=None, more="", source=None, **limits):
        """With an embedded store, and one worker for each core. `source` are keys of `[limits.source]`."""
        address, admin = addresses or (free_address(), free_address())
        text = configs.section("listen", {"address": address, "admin": admin})
        text += configs.section(
            "issuer", {"directory": self.issuer_url + configs.GATEWAY.split("{issuer}")[1].split('"')[0]}
        )
        text += configs.section("challenge", GATEWAY) + egress + configs.embedded(self.path("spent"))
        text += (configs.section("limits", limits) if limits else "")
        text += configs.section("limits.source", NOT_EXEMPT | (source or {}))
        text += configs.section("tls", tls) if tls else ""
        return self.start("gateway", self.command("gateway", text + more, files, within), address, admin)

    def agent(self, gateway, issuer=None, wallet=None, **gateway_keys):
        """`gateway` is a URL, `issuer` the section's keys. It starts without being ready."""
        address, admin = free_address(), free_address()
        text = configs.section("listen", {"address": address, "admin": admin})
        text += configs.section("gateway", {"url": gateway} | gateway_keys)
        text += configs.section("issuer", {"url": self.issuer_url} if issuer is None else issuer)
        text += configs.section("wallet", {"path": self.path("wallet")} | (wallet or {}))
        return self.start("agent", self.command("client", text), address)

    def mint(self, gateway, count, api_key=None):
        """`count` values of Proxy-Authorization."""
        path = self.path("tokens")
        command = [postern(), "token", "mint", "--issuer", self.issuer_url, "--gateway", f"http://{gateway.address}"]
        command += ["--count", str(count), "--out", path] + (["--api-key", api_key] if api_key else [])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(path) as file:
            return file.read().split("\n")[:count]

    def certificate(self):
        """An authority, and a server's certificate for 127.0.0.1 and localhost: the section `[tls]`, and the former."""
        made = certificates.make(self.path("tls"))
        return made.section(), made.ca


def published(issuer_url):
    """The first public key of an issuer's directory, in its bytes and as the directory has it."""
    directory = json.loads(get(f"{issuer_url}/.well-known/private-token-issuer-directory"))
    text = directory["token-keys"][0]["token-key"]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), text


def token_request(issuer_url, api_key=None, blinded=None):
    """A POST that an issuer signs: any number below the modulus is a blinded message."""
    key, _ = published(issuer_url)
    body = b"\0\2" + hashlib.sha256(key).digest()[-1:] + (blinded or b"\0" + os.urandom(255))
    head = "POST /token-request HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/private-token-request\r\n"
    head += f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
