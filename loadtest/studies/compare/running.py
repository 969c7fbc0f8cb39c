"""The proxies that run, and tokens for the gateways among them."""

import os, subprocess, sys

from rig import binaries


def log(text):
    print(text, file=sys.stderr, flush=True)


class Running:
    """Starts fresh proxies, and stops all that it started."""

    def __init__(self, setup):
        self.setup, self.count, self.started = setup, 0, []

    def start(self, kind):
        self.count += 1
        proxy = kind(self.setup, self.count)
        self.started.append(proxy)
        proxy.start()
        return proxy

    def stop(self, *some):
        for proxy in some or self.started:
            proxy.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def mint(setup, gateway, count):
    """Tokens for this gateway alone: they are bound to its store."""
    log(f"minting {count} tokens for {gateway.name}")
    gateway.tokens = os.path.join(setup.work, f"tokens-{gateway.port}")
    trust = ["--ca", setup.certificate.ca] if gateway.tls else []
    url = f"http{'s' * gateway.tls}://127.0.0.1:{gateway.port}"
    addresses = ["--issuer", setup.issuer, "--gateway", url, *trust]
    command = [binaries.postern(), "token", "mint", *addresses, "--count", str(count), "--out", gateway.tokens]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
