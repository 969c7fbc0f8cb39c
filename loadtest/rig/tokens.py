"""Real tokens, from the real issuer; and the names of their records, so that a store can delete them again.

A signature costs the issuer and the client more than all that is measured here. Between two turns the records of the
same tokens are therefore deleted, and each turn spends them again: for the gateway, which remembers nothing in these
measurements, and for the store they are fresh.
"""

import base64, hashlib, re, subprocess
from .binaries import postern
from .net import connect

# A target that ends the request after the check: the token is spent, then the target refuses the connection.
NOWHERE = "127.0.0.1:1"


def mint(issuer, gateway, count, path):
    """`count` values of Proxy-Authorization."""
    command = [postern(), "token", "mint", "--issuer", issuer, "--gateway", f"http://{gateway.address}"]
    subprocess.run(command + ["--count", str(count), "--out", path], check=True, stdout=subprocess.DEVNULL)
    with open(path) as file:
        return file.read().split("\n")[:count]


def request(value, target=NOWHERE):
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {value}\r\n\r\n".encode()


def parts(value):
    """Token type, nonce and token key id of a header value (RFC 9577, section 2.2)."""
    text = re.search(r'token="?([A-Za-z0-9_=-]+)', value).group(1).rstrip("=")
    token = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return token[:2], token[2:34], token[66:98]


def record(value):
    """The name of a token's record in a shared store (docs/how-it-works/spend-contract.md)."""
    kind, nonce, key = parts(value)
    return record_of(hashlib.sha256(b"postern spent v1" + kind + key + nonce).digest())


def record_of(digest):
    """The name of the record of a spent key: its bucket, and half of it (crates/spend/src/memcached/bucket.rs)."""
    bucket = LABELS[int.from_bytes(digest[16:18], "big") % len(LABELS)]
    return b"|" + bucket + b"|#|" + base64.urlsafe_b64encode(digest[:16]).rstrip(b"=")


def label(bucket):
    """The four characters by which routers choose the server of a bucket."""
    bits = bucket + 1
    for factor in (0x9E3779, 0x85EBCB, 0xC2B2AF):
        bits = bits * factor & 0xFFFFFF
        bits ^= bits >> 11
    return base64.urlsafe_b64encode(bits.to_bytes(3, "big"))


LABELS = [label(bucket) for bucket in range(1024)]


def forget(address, values, batch=500):
    """Deletes the records of tokens, through a server or a router; returns how many there were."""
    deleted = 0
    with connect(address) as stream:
        replies = stream.makefile("rb")
        for start in range(0, len(values), batch):
            some = values[start : start + batch]
            stream.sendall(b"".join(b"delete %s\r\n" % record(value) for value in some))
            deleted += sum(replies.readline() == b"DELETED\r\n" for _ in some)
    return deleted
