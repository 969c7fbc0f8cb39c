"""Another host on this machine, with a delay on the way to it, to see what the kernel's settings do at a distance.

Both hosts are network namespaces: this process and its children live in one, what a `Far` runs lives in the other, and a
process carries the packets between two tunnel devices, each a while after it came. Nothing else is on that line, neither loss
nor a limit but the carrier's speed, which `loadtest/run kernel` reports. Needs root, and ends with the process.
"""

import collections, ctypes, fcntl, json, os, select, signal, struct, subprocess, sys, time
from . import Failed

NEAR, FAR = "10.77.0.1", "10.77.0.2"  # in no network but these two
MTU = 1500
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result:
        raise Failed(f"network namespaces need root, and a kernel that has them: {os.strerror(ctypes.get_errno())}")


def alone():
    """Moves this process into a network namespace of its own. Some settings begin as those of the machine."""
    checked(libc.unshare(CLONE_NEWNET))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def device(address):
    """A tunnel device of this namespace: the end at which its packets are read and written."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"far", IFF_TUN | IFF_NO_PI))
    subprocess.run(["ip", "address", "add", f"{address}/30", "dev", "far"], check=True)
    subprocess.run(["ip", "link", "set", "far", "mtu", str(MTU), "txqueuelen", "100000", "up"], check=True)
    return end


def carry(ends, delay):
    """Takes packets from each end to the other, `delay` seconds after they came."""
    waiting = {end: collections.deque() for end in ends}
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while True:
        due = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        timeout = None if due is None else max(0, due - time.monotonic())
        for end in select.select(ends, [], [], timeout)[0]:
            now = time.monotonic()
            try:
                for _ in range(64):
                    waiting[end].append((now + delay, os.read(end, 65536)))
            except BlockingIOError:
                pass
        now = time.monotonic()
        for end, queue in waiting.items():
            while queue and queue[0][0] <= now:
                os.write(other[end], queue.popleft()[1])


class Far:
    """The other host, `delay` seconds away in each direction. This process is `alone` and reaches it at FAR."""

    def __init__(self, delay):
        self.served = []
        near = device(NEAR)
        up, ready = os.pipe()
        self.carrier = os.fork()
        if not self.carrier:
            end_with(lambda: self.carry(near, ready, delay))
        os.close(near), os.close(ready)
        if os.read(up, 1) != b"!":
            raise Failed("the far host did not come up")
        os.close(up)

    def carry(self, near, ready, delay):
        alone()
        far = device(FAR)
        os.write(ready, b"!")
        carry([near, far], delay)

    def enter(self):
        with open(f"/proc/{self.carrier}/ns/net") as place:
            checked(libc.setns(place.fileno(), CLONE_NEWNET))

    def run(self, work, *arguments):
        """What `work` returns on the far host."""
        result, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(result)

            def answered():
                self.enter()
                os.write(write, json.dumps(work(*arguments)).encode())

            end_with(answered)
        os.close(write)
        with os.fdopen(result) as file:
            text = file.read()
        os.waitpid(child, 0)
        if not text:
            raise Failed("the work on the far host failed")
        return json.loads(text)

    def serve(self, listen):
        """Runs `listen` on the far host, in a process that ends with this one."""
        child = os.fork()
        if not child:
            end_with(lambda: (self.enter(), listen()))
        self.served.append(child)

    def set(self, name, value):
        """A setting of the far host's kernel."""
        self.run(lambda: setting(name, value))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in [*self.served, self.carrier]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def end_with(work):
    """Does `work` and ends: a child that never returns into its parent's program."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(f"on the far host: {error!r}", file=sys.stderr)
    finally:
        os._exit(status)


def setting(name, value=None):
    """Reads a setting of this namespace's kernel, or sets it; returns what it was before."""
    path = os.path.join("/proc/sys", name.replace(".", "/"))
    with open(path) as file:
        before = file.read().strip()
    if value is not None:
        with open(path, "w") as file:
            file.write(str(value))
    return before
