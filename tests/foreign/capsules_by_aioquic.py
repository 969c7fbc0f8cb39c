"""Fetches URL over HTTP/3 with aioquic, whose packets go through the proxy at HOST:PORT as capsules (RFC 9297) of an extended CONNECT
by the h2 package, and prints the body. The line on standard input is the value of Proxy-Authorization. A refusal is an error with
the status.

usage: capsules_by_aioquic.py HOST:PORT CA URL
"""

import socket
import ssl
import sys
import time
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import h2.settings
from aioquic.buffer import Buffer, BufferReadError
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

proxy, ca, url = sys.argv[1:]
host, port = proxy.rsplit(":", 1)
authorization = sys.stdin.readline().strip()
target = urlsplit(url)
DATAGRAM, PAYLOAD = 0, 0  # the capsule's type, the context's id


class Proxy:
    """A stream of capsules."""

    def __init__(self):
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection((host, int(port)), timeout=40)
        self.stream = context.wrap_socket(plain, server_hostname=host)
        self.http = h2.connection.H2Connection(h2.config.H2Configuration())
        self.http.initiate_connection()
        self.waiting, self.id = b"", None
        self.flush()

    def flush(self):
        self.stream.sendall(self.http.data_to_send())

    def events(self, patience):
        """What comes within this time, in seconds."""
        if not self.stream.pending():
            self.stream.settimeout(max(patience, 0.001))
        try:
            data = self.stream.recv(1 << 16)
        except TimeoutError:
            return []
        assert data, "the proxy closed the connection"
        events = self.http.receive_data(data)
        self.flush()
        return events

    def open(self):
        setting = h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL
        while not self.http.remote_settings.get(setting):
            self.events(40)
        self.id = self.http.get_next_available_stream_id()
        self.http.send_headers(self.id, [
            (":method", "CONNECT"),
            (":protocol", "connect-udp"),
            (":scheme", "https"),
            (":authority", proxy),
            (":path", f"/.well-known/masque/udp/{target.hostname}/{target.port}/"),
            ("capsule-protocol", "?1"),
            ("proxy-authorization", authorization),
        ])
        self.flush()
        while True:
            for event in self.events(40):
                if isinstance(event, h2.events.ResponseReceived):
                    fields = {bytes(name): bytes(value) for name, value in map(encoded, event.headers)}
                    if fields[b":status"] != b"200":
                        sys.exit(f"the proxy answered {fields[b':status'].decode()}")
                    assert fields[b"capsule-protocol"] == b"?1", fields
                    return

    def send(self, packet):
        room = Buffer(capacity=len(packet) + 16)
        room.push_uint_var(DATAGRAM)
        room.push_uint_var(len(packet) + 1)
        room.push_uint_var(PAYLOAD)
        room.push_bytes(packet)
        self.http.send_data(self.id, room.data)
        self.flush()

    def receive(self, patience):
        """The packets that come within this time."""
        for event in self.events(patience):
            if isinstance(event, h2.events.DataReceived):
                self.waiting += event.data
                self.http.acknowledge_received_data(event.flow_controlled_length, self.id)
                self.flush()
            assert not isinstance(event, (h2.events.StreamReset, h2.events.StreamEnded)), event
        while True:
            room = Buffer(data=self.waiting)
            try:
                kind, capsule = room.pull_uint_var(), room.pull_bytes(room.pull_uint_var())
            except BufferReadError:
                return  # the rest of it follows
            self.waiting = self.waiting[room.tell():]
            if kind == DATAGRAM and capsule[0] == PAYLOAD:
                yield capsule[1:]


def encoded(field):
    return (part if isinstance(part, bytes) else part.encode() for part in field)


def fetch(stream):
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, server_name=target.hostname)
    configuration.load_verify_locations(ca)
    quic, peer = QuicConnection(configuration=configuration), (target.hostname, target.port)
    http = H3Connection(quic)
    quic.connect(peer, time.monotonic())
    request = quic.get_next_available_stream_id()
    http.send_headers(request, [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":authority", target.netloc.encode()),
        (b":path", b"/"),
    ], end_stream=True)
    body, end = b"", time.monotonic() + 40
    while time.monotonic() < end:
        for packet, _ in quic.datagrams_to_send(time.monotonic()):
            stream.send(packet)
        due = quic.get_timer() or end
        for packet in stream.receive(due - time.monotonic()):
            quic.receive_datagram(packet, peer, time.monotonic())
        if time.monotonic() >= due:
            quic.handle_timer(time.monotonic())
        while (event := quic.next_event()) is not None:
            for received in http.handle_event(event):
                if isinstance(received, DataReceived):
                    body += received.data
                    if received.stream_ended:
                        return body
    sys.exit("no page came in time")


stream = Proxy()
stream.open()
print(fetch(stream).decode())
