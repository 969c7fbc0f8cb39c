"""Tunnels that stay open, the target at their other end, and the kernel memory of a socket."""

import contextlib, selectors, socket, threading
from rig import Failed
from rig.tunnels import opened


class Target:
    """Echoes every byte; after a byte `S` sends zeros until the connection is closed. One thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        selector = selectors.DefaultSelector()
        selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self.listener:
                    stream, _ = self.listener.accept()
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(stream, selectors.EVENT_READ)
                    continue
                with contextlib.suppress(OSError):
                    received = key.fileobj.recv(4096)
                    if received == b"S":
                        selector.unregister(key.fileobj)
                        threading.Thread(target=pour, args=(key.fileobj,), daemon=True).start()
                    elif received:
                        key.fileobj.sendall(received)
                    else:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()


def pour(stream):
    zeros = bytes(1 << 18)
    with contextlib.suppress(OSError):
        while True:
            stream.sendall(zeros)


def tunnel(gateway, target, value):
    """An open tunnel through which one byte has gone both ways."""
    stream = opened(gateway, value, target)
    stream.sendall(b"x")
    if stream.recv(1) != b"x":
        raise Failed("another byte came back")
    return stream


def slab_sizes(names):
    """Bytes of one kernel object of each of these kinds; empty without the right to look."""
    try:
        with open("/proc/slabinfo") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[3]) for line in lines if line.split()[0] in names}
