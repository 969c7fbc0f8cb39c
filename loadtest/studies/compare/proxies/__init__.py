"""The proxies that are compared, in the order in which tables show them: the floor, then the others, then Postern."""

from typing import NamedTuple

from . import apache, envoy, haproxy, nghttpx, postern, squid, tinyproxy


class Lineup(NamedTuple):
    """Contestants that get the same work, and what their figures are set beside."""

    suffix: str  # of the result's name
    title: str
    floor: str
    peer: str
    peer_title: str
    kinds: list
    about: str  # what a short tunnel is
    cannot: dict = {}  # what is not compared, and why
    floor_title: str = "floor"


PLAIN = Lineup(
    "",
    "Beside other proxies",
    "haproxy",
    "squid",
    "Squid",
    [
        haproxy.Haproxy,
        squid.Squid,
        envoy.Envoy,
        tinyproxy.Tinyproxy,
        apache.Apache,
        postern.Embedded,
        postern.Before,
        postern.Pipelined,
        postern.Pooled,
    ],
    "Connect, CONNECT with credentials, one byte echoed, close",
)
TLS = Lineup(
    "-tls",
    "Beside other proxies, over TLS",
    "haproxy-tls",
    "envoy-h2",
    "Envoy on HTTP/2",
    [
        haproxy.OverTls,
        squid.OverTls,
        envoy.OverTls,
        nghttpx.OverTls,
        postern.OverTls,
        haproxy.Http2,
        envoy.Http2,
        nghttpx.Http2,
        postern.Http2,
    ],
    "HTTP/1.1: connect, TLS handshake, CONNECT with credentials, one byte echoed, close. HTTP/2: the same on a stream of\n"
    "one connection that all clients share",
    {
        "Squid, HTTP/2": "cannot: it speaks HTTP/1.1 to clients",
        "HAProxy, to a target of the client's choosing": "cannot: its targets are configured",
        "nghttpx alone": "cannot: it passes CONNECT on to another proxy, here Squid, whose CPU counts as nghttpx's",
    },
)
UDP = Lineup(
    "-udp",
    "UDP beside Envoy, over TLS and HTTP/2",
    "envoy-udp",
    "envoy-udp",
    "Envoy",
    [envoy.Udp, postern.Udp],
    "CONNECT-UDP with credentials on a stream of one of four connections that all clients share, a datagram of one byte\nechoed, a reset",
    floor_title="Envoy",
)
ALL = {"plain": PLAIN, "tls": TLS, "udp": UDP}
