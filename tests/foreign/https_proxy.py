"""Fetches URL over TLS through the https:// proxy GATEWAY in HTTP/2, for a token on standard input, and prints the body.

usage: https_proxy.py libcurl|h2 GATEWAY CA URL
"""

import socket
import ssl
import sys
from urllib.parse import urlsplit

client, gateway, ca, url = sys.argv[1:]
authorization = sys.stdin.readline().strip()
target = urlsplit(url)


def by_libcurl():
    from curl_cffi import Curl, CurlOpt

    received, said = [], []
    curl = Curl()
    curl.setopt(CurlOpt.URL, url.encode())
    curl.setopt(CurlOpt.PROXY, f"https://{gateway}".encode())
    curl.setopt(CurlOpt.PROXYTYPE, 3)  # CURLPROXY_HTTPS2
    curl.setopt(CurlOpt.HTTPPROXYTUNNEL, 1)
    curl.setopt(CurlOpt.PROXYHEADER, [f"Proxy-Authorization: {authorization}".encode()])
    curl.setopt(CurlOpt.HEADEROPT, 1)  # CURLHEADER_SEPARATE: the token is the proxy's alone
    for option in (CurlOpt.CAINFO, CurlOpt.PROXY_CAINFO):
        curl.setopt(option, ca.encode())
    curl.setopt(CurlOpt.WRITEFUNCTION, received.append)
    curl.setopt(CurlOpt.VERBOSE, 1)
    curl.setopt(CurlOpt.DEBUGFUNCTION, lambda _kind, some: said.append(bytes(some)))
    curl.setopt(CurlOpt.TIMEOUT, 40)
    curl.perform()
    assert b"ALPN: server accepted h2\n" in said, said  # the page's server has HTTP/1.1 alone
    return b"".join(bytes(some) for some in received).decode()


class Tunnel:
    """A stream of an HTTP/2 connection by the h2 package."""

    def __init__(self):
        from h2.config import H2Configuration
        from h2.connection import H2Connection

        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
        host, port = gateway.split(":")
        self.socket = context.wrap_socket(socket.create_connection((host, int(port)), 40), server_hostname=host)
        assert self.socket.selected_alpn_protocol() == "h2"
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.status, self.received, self.has_ended = None, b"", False
        head = [(":method", "CONNECT"), (":authority", target.netloc), ("proxy-authorization", authorization)]
        self.h2.send_headers(1, head)
        while self.status is None:
            self.turn()

    def turn(self):
        from h2 import events

        self.socket.sendall(self.h2.data_to_send())
        for event in self.h2.receive_data(self.socket.recv(65_536)):
            if isinstance(event, events.ResponseReceived):
                self.status = dict(event.headers)[":status"]
            elif isinstance(event, events.DataReceived):
                self.received += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, 1)
            elif isinstance(event, (events.StreamEnded, events.StreamReset)):
                self.has_ended = True
        self.socket.sendall(self.h2.data_to_send())


def by_h2():
    tunnel = Tunnel()
    assert tunnel.status == "200", tunnel.status
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = ssl.create_default_context(cafile=ca).wrap_bio(incoming, outgoing, server_hostname=target.hostname)

    def until_done(act):
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                tunnel.h2.send_data(1, outgoing.read())
                tunnel.turn()
                incoming.write(tunnel.received)
                tunnel.received = b""
                if tunnel.has_ended:
                    incoming.write_eof()

    until_done(inside.do_handshake)
    inside.write(f"GET {target.path} HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n\r\n".encode())
    page = b""
    while b"</p>" not in page:
        page += until_done(lambda: inside.read(65_536))
    return page.decode()


print({"libcurl": by_libcurl, "h2": by_h2}[client]())
