"""A hostile gateway, or a hostile issuer, and an agent or `postern token mint` that trusts it too far."""

import base64, os, re, socket, socketserver, ssl, struct, subprocess, threading, time
from abuse.measure import Cpu
from abuse.stage import published
from rig import reading
from rig.binaries import postern
from rig.net import connect


def scenarios(stage):
    issuer = stage.issuer([("victim", KEY, "100000/1d")])
    for name, origins in (
        ("another name in each 407", lambda n: f"proxy.example,client-{n}.example"),
        ("another mark in each 407", lambda n: f"proxy.example,{mark()}.proxy.example"),
        ("another context in each 407", None),
    ):
        yield f"agent: {REQUESTS} requests {PAUSE} s apart, {name}", None, None, None, drained(stage, issuer, origins)
    yield "agent: an endless row of 103 from the gateway", None, None, None, interim(stage)
    yield "token mint: an issuer-request-uri on another host", None, None, None, key_elsewhere(stage)
    yield "agent: no [issuer] url, a challenge that names loopback", None, None, None, named_issuer(stage)
    yield "agent: 8 tunnels over TLS", None, None, None, resumed(stage)


KEY = "d" * 32 + "0123456789abcdef"
REQUESTS = 20
PAUSE = 1
LONG = 20


def mark():
    return "m-" + base64.b32encode(os.urandom(17)).decode().lower()[:26]


def challenge(issuer_name, origins, context=b""):
    """A TokenChallenge (RFC 9577, section 2.1.1)."""
    name, origins = issuer_name.encode(), origins.encode()
    parts = struct.pack("!HH", 2, len(name)) + name + struct.pack("!B", len(context)) + context
    return parts + struct.pack("!H", len(origins)) + origins


def refusal(body, key):
    text = base64.urlsafe_b64encode(body).decode()
    fields = f'Proxy-Authenticate: PrivateToken challenge="{text}", token-key="{key}", max-age=0'
    return f"HTTP/1.1 407 No\r\n{fields}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


class Server:
    """A TCP server whose every connection is `answer`'s, in a thread; its address, and how many there were."""

    def __init__(self, answer, host="127.0.0.1"):
        self.seen, outer = [], self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.settimeout(30)
                try:
                    answer(self.request, outer)
                except OSError:
                    pass

        class Threaded(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads, request_queue_size = True, True, 1024

        self.server = Threaded((host, 0), Handler)
        self.address = "%s:%d" % self.server.server_address
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def head(stream):
    got = b""
    while b"\r\n\r\n" not in got and (more := stream.recv(65536)):
        got += more
    return got


def through(agent, count, target="example.com:443", patience=12):
    """Requests through an agent, one after the other: the statuses."""
    seen = []
    for _ in range(count):
        try:
            with connect(agent.address, timeout=patience) as stream:
                stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
                seen.append(head(stream)[9:12].decode() or "closed")
        except OSError as error:
            seen.append(type(error).__name__)
    return seen


def signed(issuer):
    found = re.findall(
        r'postern_issuer_requests_total\{[^}]*outcome="issued"[^}]*\} (\d+)', reading.metrics(issuer.admin)
    )
    return sum(map(int, found))


def drained(stage, issuer, origins):
    """How many tokens an agent has signed for a gateway that names another challenge in each refusal."""
    _, key = published(stage.issuer_url)

    def answer(stream, server):
        head(stream)
        server.seen.append(1)
        names = origins(len(server.seen)) if origins else "proxy.example"
        stream.sendall(refusal(challenge("issuer.example", names, b"" if origins else os.urandom(32)), key))

    server, before = Server(answer), signed(issuer)
    issuer_keys = {"url": stage.issuer_url, "api_key": KEY}
    agent = stage.agent(f"http://{server.address}", issuer_keys, origin="proxy.example")
    statuses = [status for _ in range(REQUESTS) for status in through(agent, 1) if not time.sleep(PAUSE)]
    remark = f"{signed(issuer) - before:,} tokens signed; answers: "
    stage.stop(agent)
    return remark + ", ".join(f"{statuses.count(each)} × {each}" for each in sorted(set(statuses)))


def interim(stage):
    def answer(stream, server):
        head(stream)
        server.seen.append(1)
        while True:
            stream.sendall(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" * 1000)

    server = Server(answer)
    agent = stage.agent(f"http://{server.address}")
    cpu, began = Cpu(agent.pid), time.monotonic()
    statuses = through(agent, 1, patience=LONG)
    answered = time.monotonic() - began
    time.sleep(max(0, began + LONG - time.monotonic()))
    spent, exchanges = cpu.spent(), len(server.seen)
    stage.stop(agent)
    remark = f"{spent / LONG:.0%} of a core over {LONG} s, {exchanges} exchanges; "
    return remark + f"the request ended after {answered:.0f} s ({statuses[0]})"


def key_elsewhere(stage):
    """Whether an API key is sent to the host that the issuer's directory names."""
    _, key = published(stage.issuer_url)

    def other(stream, server):
        server.seen.append(re.findall(rb"(?i)authorization: *(\S+)", head(stream)))

    elsewhere = Server(other, "127.0.0.2")

    def answer(stream, server):
        head(stream)
        body = (
            f'{{"issuer-request-uri":"http://{elsewhere.address}/token-request",'
            f'"token-keys":[{{"token-type":2,"token-key":"{key}"}}]}}'
        )
        fields = f"Content-Type: application/private-token-issuer-directory\r\nContent-Length: {len(body)}"
        stream.sendall(f"HTTP/1.1 200 OK\r\n{fields}\r\nConnection: close\r\n\r\n{body}".encode())

    def gateway(stream, server):
        head(stream)
        stream.sendall(refusal(challenge("issuer.example", "proxy.example"), key))

    command = [postern(), "token", "mint", "--issuer", f"http://{Server(answer).address}", "--api-key", KEY]
    command += ["--gateway", f"http://{Server(gateway).address}", "--count", "1"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
    sent = sum(bool(fields) for fields in elsewhere.seen)
    return f"the other host got {len(elsewhere.seen)} requests, {sent} with the API key"


def named_issuer(stage):
    """Whether a gateway chooses where an agent opens TLS to."""
    _, key = published(stage.issuer_url)

    def inside(stream, server):
        server.seen.append(stream.recv(1)[:1])

    inner = Server(inside)

    def answer(stream, server):
        head(stream)
        stream.sendall(refusal(challenge(inner.address, "proxy.example"), key))

    agent = stage.agent(f"http://{Server(answer).address}", {"ca": stage.certificate()[1]}, origin="proxy.example")
    through(agent, 2)
    stage.stop(agent)
    hellos = inner.seen.count(b"\x16")
    return f"TLS handshakes that began at {inner.address.split(':')[0]}: {hellos}"


def resumed(stage):
    """How many of an agent's tunnels resume the TLS session of another, and whether our gateway sends tickets."""
    stage.issuer()
    tls, ca = stage.certificate()
    gateway = stage.gateway(tls=tls)
    host, port = gateway.address.split(":")

    def relay(stream, server):
        hello = stream.recv(65536)
        server.seen.append(has_ticket(hello))
        with socket.create_connection((host, int(port))) as far:
            far.sendall(hello)
            back = threading.Thread(target=pump, args=(far, stream), daemon=True)
            back.start()
            pump(stream, far)

    between = Server(relay)
    agent = stage.agent(f"https://{between.address}", origin="proxy.example", ca=ca)
    time.sleep(3)
    del between.seen[:]
    through(agent, 8, "127.0.0.1:1")
    resumed_ones, tunnels = sum(between.seen), len(between.seen)
    context = ssl.create_default_context(cafile=ca)
    with context.wrap_socket(socket.create_connection((host, int(port))), server_hostname="localhost") as stream:
        stream.sendall(b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n")
        stream.recv(65536)
        ticket = stream.session is not None and stream.session.has_ticket
    stage.stop(agent, gateway)
    return f"{resumed_ones} of {tunnels} handshakes offer a session of another; the gateway sends a ticket: {ticket}"


def pump(source, sink):
    try:
        while got := source.recv(65536):
            sink.sendall(got)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def has_ticket(hello):
    """Whether a ClientHello of TLS 1.3 has a pre-shared key (extension 41)."""
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + struct.unpack_from("!H", hello, at)[0]
    at += 1 + hello[at]
    end = at + 2 + struct.unpack_from("!H", hello, at)[0]
    at += 2
    while at + 4 <= min(end, len(hello)):
        kind, length = struct.unpack_from("!HH", hello, at)
        if kind == 41:
            return True
        at += 4 + length
    return False
