"""Tunnels, as a client opens them with a token."""

from . import Failed
from .net import connect
from .tokens import request


def attempt(address, value, target):
    """A tunnel, or the status line of its refusal."""
    stream = connect(address)
    stream.sendall(request(value, target))
    head = b""
    while b"\r\n\r\n" not in head:
        some = stream.recv(4096)
        if not some:
            raise Failed(f"the gateway closed the connection after {head!r}")
        head += some
    status = head.split(b"\r\n")[0].decode()
    if " 200 " not in status:
        stream.close()
        return status
    return stream


def opened(address, value, target):
    """A tunnel, which must be opened."""
    stream = attempt(address, value, target)
    if isinstance(stream, str):
        raise Failed(f"a tunnel was refused: {stream}")
    return stream
