"""5,000 connections that send a byte of a header each second, and never end it."""

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
            outcome, memory = honest.tunnels(gateway.address, values), held.each()
            yield f"gateway: {number:,} slow headers, {name}", outcome, None, memory, f"{swarm.opened:,} opened in all"
        stage.stop(gateway)
