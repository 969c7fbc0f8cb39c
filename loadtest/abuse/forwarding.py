"""Plain `http://` requests through the gateway: slow uploads, targets and clients whose framing is broken, and a target
that speaks in the gateway's name."""

import socket, threading, time
from abuse.measure import Cpu
from rig.net import connect

OURS = (
    b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Status: postern; error=http_request_denied; "
    b'details="token already spent"\r\nContent-Length: 0\r\n\r\n'
)


def scenarios(stage):
    stage.issuer()
    gateway = stage.gateway(idle_timeout="2s")
    values = iter(stage.mint(gateway, 8))
    for name, attempt in (
        ("a slow upload, a byte each half second for 8 s, idle_timeout 2 s", slow_upload),
        ("a target's Content-Length beside chunked", two_lengths),
        ("a client's broken chunk", broken_chunk),
        ("a target's 407 with our Proxy-Status", in_our_name),
    ):
        yield f"gateway, forwarding: {name}", None, None, None, attempt(gateway, next(values))
    patient = stage.gateway()
    yield "gateway, forwarding: an endless row of 103 from the target", None, None, None, interim(patient, next(values))


def target(answer):
    """A web server for one connection: calls `answer` with it in a thread; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listener, listener.accept()[0] as stream:
            stream.settimeout(20)
            try:
                answer(stream)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return "127.0.0.1:%d" % listener.getsockname()[1]


def ask(gateway, value, to, rest=b"\r\n", method="GET"):
    stream = connect(gateway.address, timeout=20)
    head = f"{method} http://{to}/ HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {value}\r\n"
    stream.sendall(head.encode() + rest)
    return stream


def until(stream, end):
    got = b""
    while end not in got and (more := stream.recv(65536)):
        got += more
    return got


def answer_of(stream):
    try:
        return until(stream, b"\r\n\r\n").split(b"\r\n\r\n")[0].decode() or "closed without an answer"
    except OSError as error:
        return type(error).__name__


def slow_upload(gateway, value):
    def answer(stream):
        until(stream, b"16")
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    stream, began = ask(gateway, value, target(answer), b"Content-Length: 18\r\n\r\n", "POST"), time.monotonic()
    for number in range(16):
        time.sleep(0.5)
        stream.setblocking(False)
        try:
            early = stream.recv(4096)
            return f"cut after {time.monotonic() - began:.1f} s: {early[:12].decode() or 'closed'}"
        except BlockingIOError:
            stream.setblocking(True)
            stream.sendall(b"16" if number == 15 else b".")
    stream.sendall(b"...")
    return answer_of(stream).split("\r\n")[0]


def two_lengths(gateway, value):
    def answer(stream):
        until(stream, b"\r\n\r\n")
        stream.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        )

    stream = ask(gateway, value, target(answer))
    got = until(stream, b"hello").decode()
    kept = [line for line in got.split("\r\n")[1:] if line.lower().startswith(("content-length", "transfer-enc"))]
    return f"{got.splitlines()[0]}; {', '.join(kept)}; then {got.partition(chr(13) + chr(10) + chr(13) + chr(10))[2]!r}"


def broken_chunk(gateway, value):
    def answer(stream):
        until(stream, b"never")

    rest = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n\r\n"
    return answer_of(ask(gateway, value, target(answer), rest, "POST")).split("\r\n")[0]


def interim(gateway, value, seconds=10):
    def answer(stream):
        until(stream, b"\r\n\r\n")
        while True:
            stream.sendall(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" * 1000)

    cpu, stream = Cpu(gateway.pid), ask(gateway, value, target(answer))
    time.sleep(seconds)
    stream.setblocking(False)
    try:
        answered = stream.recv(4096)[:12].decode()
    except BlockingIOError:
        answered = "no answer yet"
    return f"{cpu.spent() / seconds:.0%} of a core over {seconds} s; {answered}"


def in_our_name(gateway, value):
    def answer(stream):
        until(stream, b"\r\n\r\n")
        stream.sendall(OURS)

    head = answer_of(ask(gateway, value, target(answer)))
    ours = [line for line in head.split("\r\n")[1:] if line.lower().startswith("proxy-status")]
    return f"{head.splitlines()[0]}; {', '.join(ours) or 'no Proxy-Status'}"
