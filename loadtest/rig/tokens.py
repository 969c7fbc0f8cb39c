"""Real tokens, from the real issuer; and the names of records."""

import base64, subprocess
from .binaries import postern

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
