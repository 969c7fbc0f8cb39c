"""Small ones: what is let through that should not be, and sentences that are not true."""

import time
from abuse.measure import Held
from abuse.stage import token_request
from abuse.swarm import Swarm
from rig.net import connect


def scenarios(stage):
    issuer = stage.issuer()
    gateway = stage.gateway()
    sent = b"CONNECT example.com:443 HTTP/1.1\r\n\r\n"
    yield "gateway: HTTP/1.1 CONNECT without Host", None, None, None, line(gateway.address, sent)
    for name, blinded in (("0", bytes(256)), ("1", bytes(255) + b"\1"), ("2^2048 - 1", b"\xff" * 256)):
        answer = line(issuer.address, token_request(stage.issuer_url, blinded=blinded), body=True)
        yield f"issuer: the blinded message {name}", None, None, None, answer
    agent = stage.agent(f"http://{gateway.address}")
    held = Held(agent.pid)
    with Swarm(agent.address, 5000, again=False):
        held.wait(5000, 15)
        first, memory = held.count(), held.each()
        time.sleep(15)
        remark = f"held at first: {first:,}; after 15 s: {held.count():,}"
    yield "agent: 5,000 silent connections", None, None, memory, remark


def line(address, sent, body=False):
    with connect(address, timeout=10) as stream:
        stream.sendall(sent)
        answer = stream.recv(65536).decode(errors="replace")
    status, text = answer.splitlines()[0], answer.partition("\r\n\r\n")[2].strip()
    return f"{status}: {text}" if body and answer[9:12] != "200" else status
