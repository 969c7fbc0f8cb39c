"""One address that opens every connection it can, and holds it, and one that begins TLS again and
again."""

import ssl
from abuse import honest
from abuse.measure import Cpu, Held
from abuse.swarm import Handshakes, Swarm

# A refused CONNECT would end its connection.
CHALLENGE = b"GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n"


def scenarios(stage, number=12_000):
    issuer = stage.issuer()
    gateway = stage.gateway()
    values = stage.mint(gateway, honest.COUNT)
    held = Held(gateway.pid)
    with Swarm(gateway.address, number, CHALLENGE, drip=CHALLENGE, period=5) as swarm:
        held.wait(10_000, 20)
        memory, count = held.each(), held.count()
        outcome = honest.tunnels(gateway.address, values)
        remark = f"the gateway held {count:,}; {swarm.opened:,} opened, {swarm.closed:,} closed by it"
        yield f"gateway: one address opens {number:,} connections, a request every 5 s", outcome, None, memory, remark
    stage.stop(gateway)
    held = Held(issuer.pid)
    request = b"GET /.well-known/private-token-issuer-directory HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with Swarm(issuer.address, 2000, request, drip=request, period=5) as swarm:
        held.wait(1024, 20)
        memory, count = held.each(), held.count()
        outcome = honest.requests(issuer.address, request)
        remark = f"the issuer held {count:,}; {swarm.opened:,} opened, {swarm.closed:,} closed by it"
        yield "issuer: one address opens 2,000 connections, a request on each every 5 s", outcome, None, memory, remark
    stage.stop(issuer)
    yield from handshakes(stage)


def handshakes(stage, loops=4):
    tls, ca = stage.certificate()
    trusting = ssl.create_default_context(cafile=ca)
    stage.issuer()
    gateway = stage.gateway(tls=tls)
    values = stage.mint(stage.gateway(), honest.COUNT)
    with Handshakes(gateway.address, loops, trusting) as flood:
        cpu, before = Cpu(gateway.pid), flood.count
        outcome = honest.tunnels(gateway.address, values, trusting)
        number = flood.count - before
        spent = cpu.spent() / (number + len(values))
    remark = f"{number:,} handshakes; the CPU is that of a handshake, honest ones and their tunnels included"
    yield f"gateway, TLS: one address, {loops} loops of handshakes", outcome, spent, None, remark
