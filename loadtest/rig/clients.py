"""Clients on kept connections, each with one outstanding request: the next is sent after the answer."""

import collections, re, select
from .net import connect

LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


class Connection:
    def __init__(self, address):
        self.stream = connect(address)
        self.buffer = b""
        self.requests = iter(())

    def send_next(self):
        """Sends the next request; False when none is left."""
        request = next(self.requests, None)
        if request is None:
            return False
        self.stream.sendall(request)
        return True

    def answer(self):
        """The status of an answer that was read completely, or None."""
        got = self.stream.recv(1 << 16)
        if not got:
            raise ConnectionError("the gateway closed a kept connection")
        buffer = self.buffer + got if self.buffer else got
        end = buffer.find(b"\r\n\r\n")
        length = LENGTH.search(buffer, 0, end) if end >= 0 else None
        if end < 0 or len(buffer) < end + 4 + int(length.group(1) if length else 0):
            self.buffer = buffer
            return None
        self.buffer = b""
        return int(buffer[9:12])


class Clients:
    """`number` connections to each address, opened once and used for every `run`."""

    def __init__(self, addresses, number):
        self.groups = [[Connection(address) for _ in range(number)] for address in addresses]

    def run(self, work):
        """Each group sends the requests of its part of `work`; returns the number of answers of each status."""
        seen, poll, by_fd = collections.Counter(), select.epoll(), {}
        for group, requests in zip(self.groups, work):
            shared = iter(requests)
            for connection in group:
                connection.requests = shared
                if connection.send_next():
                    by_fd[connection.stream.fileno()] = connection
                    poll.register(connection.stream, select.EPOLLIN)
        while by_fd:
            for number, _ in poll.poll():
                connection = by_fd[number]
                status = connection.answer()
                if status is not None:
                    seen[status] += 1
                    if not connection.send_next():
                        poll.unregister(number)
                        del by_fd[number]
        poll.close()
        return seen

    def close(self):
        for group in self.groups:
            for connection in group:
                connection.stream.close()
