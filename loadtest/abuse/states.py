"""Memory of a connection without a token in each state that it can be held in, 1,000 of each."""

import ssl, time
from abuse.measure import Cpu, Held
from abuse.swarm import Swarm, many_sources

# A refused CONNECT would end its connection.
CHALLENGE = b"GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n"
DIRECTORY = b"GET /.well-known/private-token-issuer-directory HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LONG = b"X-A: " + b"a" * 15_000
BEGUN = b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n"
BODY = (
    b"POST /token-request HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/private-token-request\r\nContent-Length: 259\r\n\r\n"
)
HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"\x03\x03" + bytes(8000)
NUMBER = 1000


def scenarios(stage):
    tls, ca = stage.certificate()
    trusting = ssl.create_default_context(cafile=ca)
    stage.issuer()
    slow = {"header_timeout": "60s"}
    plain = (
        ("silent", b""),
        ("a byte", b"C"),
        ("a header of 15 kB without its end", BEGUN + LONG),
        ("kept after a 407", CHALLENGE),
        ("kept after a 407 to 15 kB", CHALLENGE[:-2] + LONG + b"\r\n\r\n"),
    )
    yield from states(stage, "gateway", lambda: stage.gateway(**slow), plain)
    yield from states(
        stage,
        "gateway, TLS",
        lambda: stage.gateway(tls=tls, **slow),
        (("silent", b""), ("8 kB of a ClientHello", HELLO)),
    )
    shaken = (
        ("after the handshake", b""),
        ("a header of 15 kB without its end", BEGUN + LONG),
        ("kept after a 407", CHALLENGE),
    )
    yield from states(stage, "gateway, TLS", lambda: stage.gateway(tls=tls, **slow), shaken, trusting)
    waiting = (
        ("silent", b""),
        ("a header of 15 kB without its end", BEGUN + LONG),
        ("a body that does not come", BODY),
        ("kept after the directory", DIRECTORY),
    )
    issuer = lambda: stage.issuer(header_timeout="60s", body_timeout="60s")
    yield from states(stage, "issuer", issuer, waiting)
    stage.issuer()
    gateway = stage.gateway()
    agents = (
        ("silent", b""),
        ("a byte", b"C"),
        ("a header of 30 kB without its end", BEGUN + b"X-A: " + b"a" * 30_000),
        ("SOCKS5 greeting", b"\5\1\0"),
    )
    yield from states(stage, "agent", lambda: stage.agent(f"http://{gateway.address}"), agents)


def states(stage, name, start, each, tls=None):
    for state, sent in each:
        program = start()
        held, cpu = Held(program.pid), Cpu(program.pid)
        with Swarm(program.address, NUMBER, sent, sources=many_sources(NUMBER), again=False, tls=tls):
            count = held.wait(NUMBER - 1, 30)
            time.sleep(2)
            memory, spent = held.each(), cpu.spent() / max(1, count)
        yield f"{name}: {state}", None, spent, memory, f"{count:,} held"
        stage.stop(program)
