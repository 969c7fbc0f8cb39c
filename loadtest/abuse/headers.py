"""5,000 connections that send a byte of a header each second, and never end it; opened again when they are closed."""

from abuse import honest
from abuse.measure import Held
from abuse.stage import Stage
from abuse.swarm import LOOPBACK, Swarm, many_sources

FIRST = b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\nX-A: "


def scenarios(stage, number=5000):
    stage.issuer()
    for name, sources in (("many addresses", many_sources(number)), ("one address", (LOOPBACK,))):
        gateway = stage.gateway()
        values = stage.mint(gateway, honest.COUNT)
        held = Held(gateway.pid)
        with Swarm(gateway.address, number, FIRST, b"a", sources=sources) as swarm:
            held.wait(number)
            memory = held.each()
            outcome = honest.tunnels(gateway.address, values)
            yield f"gateway: {number:,} slow headers, {name}", outcome, None, memory, f"{swarm.opened:,} opened in all"
        stage.stop(gateway)
    ask = b"GET /.well-known/private-token-issuer-directory HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    for name, sources in (("many addresses", many_sources(number)), ("one address", (LOOPBACK,))):
        issuer = stage.issuer()
        held = Held(issuer.pid)
        with Swarm(issuer.address, number, ask + b"X-A: ", b"a", sources=sources) as swarm:
            held.wait(1024)
            memory = held.each()
            outcome = honest.requests(issuer.address, ask + b"\r\n")
            yield f"issuer: {number:,} slow headers, {name}", outcome, None, memory, f"{swarm.opened:,} opened in all"
    gateway = stage.gateway()
    with Swarm(gateway.admin, 200, b"GET / HTTP/1.1\r\nX-A: ", b"a"):
        outcome = honest.requests(gateway.admin, b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        yield "admin listener: 200 slow headers, one address", outcome, None, None, None
