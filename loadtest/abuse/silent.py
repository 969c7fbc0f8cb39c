"""Clients that send requests, one behind the other, and never read the answers; on every listener."""

import os, signal, ssl, time
from abuse import honest
from abuse.measure import Held
from abuse.swarm import Swarm
from rig.programs import served

# A refused CONNECT would end its connection.
CHALLENGE = b"GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n"
LATER = 60


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def scenarios(stage):
    tls, ca = stage.certificate()
    trusting = ssl.create_default_context(cafile=ca)
    for name, own, client in (("plain", None, None), ("TLS", tls, trusting)):
        issuer = stage.issuer(tls=own)
        request = get("/.well-known/private-token-issuer-directory")
        yield from silence(issuer, f"issuer, {name}", 1100, request, request, client, begin=15)
        stage.stop(issuer)
    stage.issuer()
    gateway = stage.gateway(header_timeout="3s", connections=1000)
    values = stage.mint(gateway, honest.COUNT)
    yield from silence(gateway, "admin listener", 64, get("/metrics"), get("/readyz"), begin=15, address=gateway.admin)
    yield from silence(gateway, "gateway, plain, header_timeout 3 s, 1,000 places", 1000, CHALLENGE, values, begin=15)
    stage.stop(gateway)
    secure = stage.gateway(tls=tls, header_timeout="3s", connections=1000)
    values = stage.mint(gateway := stage.gateway(), honest.COUNT)
    yield from silence(secure, "gateway, TLS, the same", 1000, CHALLENGE, values, trusting, begin=15)
    agent = stage.agent(f"http://{gateway.address}")
    yield from silence(agent, "agent", 1000, get("/"), get("/"), begin=15)
    stage.stop(agent, secure, gateway)
    yield from forwarded(stage)


def silence(program, name, number, flood, asked, tls=None, begin=0, address=None):
    address, held, began = address or program.address, Held(program.pid), time.monotonic()
    with Swarm(address, number, flood, flood=230_000, again=False, tls=tls) as swarm:
        held.wait(number, LATER // 2)
        time.sleep(begin)
        at_first, memory = held.count(), held.each()
        if isinstance(asked, list):
            outcome = honest.tunnels(address, asked, tls)
        else:
            outcome = honest.requests(address, asked, tls)
        time.sleep(max(0, began + LATER - time.monotonic()))
        remark = f"held at first: {at_first:,}; after {LATER} s: {held.count():,}; each sent {swarm.sent // number:,} B"
        yield f"{name}: {number:,} clients that never read", outcome, None, memory, remark


def endless(listener):
    """A web server whose answers never end."""
    while True:
        stream = listener.accept()[0]
        if not os.fork():
            try:
                stream.recv(65536)
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
                while True:
                    stream.sendall(bytes(1 << 20))
            finally:
                os._exit(0)
        stream.close()


def forwarded(stage, number=20):
    gateway = stage.gateway(idle_timeout="2s", header_timeout="3s")
    values, (to, child) = stage.mint(gateway, number + honest.COUNT), served(endless)
    held = Held(gateway.pid)
    ask = lambda n: f"GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {values[n]}\r\n\r\n".encode()
    with Swarm(gateway.address, number, ask, flood=1, again=False):
        time.sleep(20)
        count, memory = held.count() // 2, held.each()
        outcome = honest.tunnels(gateway.address, values[number:])
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    remark = f"held after 20 s, ten times idle_timeout: {count} of {number}"
    yield f"gateway: {number} forwarded answers that are not read", outcome, None, memory, remark
