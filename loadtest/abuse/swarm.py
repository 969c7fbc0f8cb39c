"""Many connections of an attacker, in a process of their own."""

import multiprocessing, os, select, signal, socket, ssl, time

LOOPBACK = "127.66.255.1"  # not the address of honest clients: a source has its share of connections


def many_sources(number):
    """Addresses of loopback, all different."""
    return [f"127.66.{n // 250}.{n % 250 + 1}" for n in range(number)]


def open_socket(address, source=LOOPBACK, room=None):
    """A connection under way, not waited for, with `room` bytes for what is not read."""
    host, port = address.rsplit(":", 1)
    stream = socket.socket()
    stream.setblocking(False)
    if room:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    stream.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: each source has all ports
    stream.bind((source, 0))
    stream.connect_ex((host, int(port)))
    return stream


def shaken(stream, tls):
    """The stream after its TLS handshake, which is waited for."""
    stream.settimeout(10)
    stream = tls.wrap_socket(stream, server_hostname="localhost")
    stream.setblocking(False)
    return stream


class Swarm:
    """`number` connections to `address` that send `first` and then `drip` each `period` seconds, and never read; those
    that the server closes are opened again. `flood` sends `first` without end, until `most` bytes are on the way."""

    def __init__(
        self, address, number, first=b"", drip=b"", period=1, sources=(LOOPBACK,), flood=0, again=True, tls=None
    ):
        self.counts = multiprocessing.Array("q", 4)  # connections opened, closed by the server, open, bytes sent
        self.work = (address, number, first, drip, period, sources, flood, again, tls)
        self.child = os.fork()
        if not self.child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                self.run()
            finally:
                os._exit(1)

    opened = property(lambda self: self.counts[0])
    closed = property(lambda self: self.counts[1])
    held = property(lambda self: self.counts[2])
    sent = property(lambda self: self.counts[3])

    def run(self):
        address, number, first, drip, period, sources, flood, again, tls = self.work
        poll, streams, left, next_source = select.epoll(), {}, {}, 0
        gone = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP

        def open_one():
            nonlocal next_source
            # A TLS handshake crawls through so little room, but with more the server answers for longer until it is held.
            room = 2048 if flood else None
            stream = open_socket(address, sources[next_source % len(sources)], room)
            try:
                stream = shaken(stream, tls) if tls else stream
            except OSError:
                self.counts[1] += 1
                return stream.close()
            sent = first(next_source) if callable(first) else first
            next_source += 1
            streams[stream.fileno()], left[stream.fileno()] = stream, sent * max(1, flood // max(1, len(sent)))
            poll.register(stream, gone | select.EPOLLOUT)
            self.counts[0] += 1

        next_drip, missing = time.monotonic() + period, number
        while True:
            while missing and len(streams) < number:
                missing -= 1
                open_one()
                if missing % 64 == 0:
                    break
            for fd, events in poll.poll(0.05):
                stream = streams[fd]
                try:
                    if events & gone:
                        raise ConnectionError
                    if left[fd]:
                        sent = stream.send(left[fd][:65536])
                        self.counts[3] += sent
                        left[fd] = left[fd][sent:]
                    if not left[fd]:
                        poll.modify(fd, gone)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass
                except OSError:
                    poll.unregister(fd)
                    streams.pop(fd).close()
                    self.counts[1] += 1
                    missing += again
            self.counts[2] = len(streams)
            if drip and time.monotonic() >= next_drip:
                next_drip += period
                for stream in streams.values():
                    try:
                        stream.send(drip)
                    except OSError:
                        pass  # the poll sees it

    def stop(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Cycle:
    """`clients` closed loops, in a process of their own: `request` again as soon as the answer is there, on kept
    connections. Counts answers of 200, other answers, and connections that broke."""

    def __init__(self, address, clients, request, source=LOOPBACK):
        self.counts = multiprocessing.Array("q", 3)
        self.child = os.fork()
        if not self.child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                self.run(address, clients, request, source)
            finally:
                os._exit(1)

    def run(self, address, clients, request, source):
        poll, streams = select.epoll(), {}

        def open_one():
            stream = open_socket(address, source)
            streams[stream.fileno()] = stream
            poll.register(stream, select.EPOLLOUT)

        for _ in range(clients):
            open_one()
        while True:
            for fd, events in poll.poll():
                stream = streams[fd]
                try:
                    if events & select.EPOLLOUT:
                        stream.send(request)
                        poll.modify(fd, select.EPOLLIN)
                        continue
                    got = stream.recv(65536)
                    if not got:
                        raise ConnectionError
                    self.counts[0 if got.startswith(b"HTTP/1.1 200") else 1] += 1
                    stream.send(request)
                except OSError:
                    self.counts[2] += 1
                    poll.unregister(fd)
                    streams.pop(fd).close()
                    open_one()

    stop, __enter__, __exit__ = Swarm.stop, Swarm.__enter__, Swarm.__exit__


class Handshakes:
    """TLS handshakes one after the other in `loops` processes; each connection is closed after its handshake."""

    def __init__(self, address, loops, tls):
        self.counts = multiprocessing.Array("q", loops)
        self.children = [os.fork() or self.run(n, address, tls) for n in range(loops)]

    count = property(lambda self: sum(self.counts))

    def run(self, number, address, tls):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        host, port = address.split(":")
        while True:
            try:
                with socket.create_connection((host, int(port)), timeout=10) as stream:
                    tls.wrap_socket(stream, server_hostname="localhost").close()
                self.counts[number] += 1
            except OSError:
                time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
