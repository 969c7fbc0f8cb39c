"""Serves TEXT over HTTP/3 on a free port of 127.0.0.1, and prints the port.

usage: http3_page.py CERTIFICATE KEY TEXT
"""

import asyncio
import sys

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

certificate, key, text = sys.argv[1:]


class Page(QuicConnectionProtocol):
    http = None

    def quic_event_received(self, event):
        if self.http is None:
            self.http = H3Connection(self._quic)
        for received in self.http.handle_event(event):
            if isinstance(received, HeadersReceived):
                length = str(len(text)).encode()
                self.http.send_headers(received.stream_id, [(b":status", b"200"), (b"content-length", length)])
                self.http.send_data(received.stream_id, text.encode(), end_stream=True)
                self.transmit()


async def main():
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(certificate, key)
    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Page)
    print(server._transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
