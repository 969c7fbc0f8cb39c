"""Tokens, and the driver that spends them on tunnels."""

import subprocess

from rig.binaries import driver


class Purse:
    """Tokens, each used once."""

    def __init__(self, path, tokens):
        self.path, self.tokens, self.used = path, tokens, 0

    def take(self, count):
        first, self.used = self.used, self.used + count
        assert self.used <= len(self.tokens), "more tokens are needed"
        return first

    def one(self):
        return self.tokens[self.take(1)]


def load(gateway, purse, count, clients):
    options = {"--proxy": gateway.address, "--tokens": purse.path}
    options |= {"--skip": purse.take(count), "--count": count, "--clients": clients}
    words = [str(word) for pair in options.items() for word in pair]
    subprocess.run([driver(), "tunnels", *words], check=True, stdout=subprocess.DEVNULL)
