"""Names that an attacker chooses: many addresses, many requests for one name, and addresses that carry others. Needs
root: the gateway gets a resolver of its own (a mount namespace) and a public address on loopback (a network namespace).
"""

import os, socket, struct, subprocess, threading
from abuse.measure import Cpu
from rig.binaries import postern
from rig.net import connect, free_port

SERVER = "127.0.0.153"
MANY = 4000
WITHIN = ["unshare", "-m", "bash", "-c", 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"', "bash"]
SPECIAL = (
    "::ffff:0:7f00:1",
    "2a00::5efe:7f00:1",
    "2a00::200:5efe:a00:1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
)

# The SOA of "example", by which what does not exist may be kept for a minute (RFC 2308).
START = b"\7example\0\0\6\0\1\0\0\0\x3c\0\x16" + b"\0\0" + struct.pack("!IIIII", 1, 60, 60, 60, 60)


def scenarios(stage):
    if os.geteuid():
        yield "names: needs root", None, None, None, "left out"
        return
    stage.issuer()
    server = Names()
    gateway = stage.gateway(within=[*WITHIN, stage.config("resolv.conf", f"nameserver {SERVER}\n")])
    values = stage.mint(gateway, 400)
    yield f"gateway: one token, a name with {MANY:,} addresses, each refuses", None, *many(gateway, values.pop())
    for kind, what in (
        ("slow", "one name, answered after 0.3 s"),
        ("slow", "the same again, within its TTL of 60 s"),
        ("missing", "one name that does not exist"),
        ("broken", "one name that fails (SERVFAIL)"),
    ):
        before = server.count
        at_once(gateway, [values.pop() for _ in range(90)], f"{kind}.example:9")
        remark = f"{server.count - before} queries to the resolver"
        yield f"gateway: 90 tokens at once, {what}", None, None, None, remark
    yield "gateway: addresses that carry another", None, None, None, carried(stage)
    yield "gateway: an address of its own, private = false", None, None, None, own_address(stage)


class Names:
    """A name server: `many.` has thousands of addresses, `slow.` one after a while; `broken.` fails, and
    anything else does not exist."""

    def __init__(self):
        self.count = 0
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind((SERVER, 53))
        tcp = socket.create_server((SERVER, 53))
        for serve in (lambda: self.serve_udp(udp), lambda: self.serve_tcp(tcp)):
            threading.Thread(target=serve, daemon=True).start()

    def serve_udp(self, udp):
        while True:
            query, client = udp.recvfrom(4096)
            self.count += 1
            delay = 0.3 if b"slow" in query else 0
            threading.Timer(delay, lambda q=query, c=client: udp.sendto(self.answer(q, 512), c)).start()

    def serve_tcp(self, tcp):
        while True:
            stream = tcp.accept()[0]
            threading.Thread(target=self.serve_stream, args=(stream,), daemon=True).start()

    def serve_stream(self, stream):
        while length := stream.recv(2, socket.MSG_WAITALL):
            query = stream.recv(struct.unpack("!H", length)[0], socket.MSG_WAITALL)
            answer = self.answer(query, 65535)
            stream.sendall(struct.pack("!H", len(answer)) + answer)

    def answer(self, query, most):
        end = query.index(b"\0", 12) + 5
        question, kind = query[12:end], struct.unpack("!H", query[end - 4 : end - 2])[0]
        exists = b"many" in question or b"slow" in question
        addresses = 0 if kind != 1 or not exists else MANY if b"many" in question else 1
        records = b"".join(
            b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + bytes((127, 77, n >> 8, n & 255)) for n in range(1, addresses + 1)
        )
        flags = 0x8180 if exists else 0x8182 if b"broken" in question else 0x8183
        if 12 + len(question) + len(records) > most:
            return query[:2] + struct.pack("!HHHHH", flags | 0x200, 1, 0, 0, 0) + question
        authority = START if addresses == 0 and b"broken" not in question else b""
        counts = struct.pack("!HHHHH", flags, 1, addresses, bool(authority), 0)
        return query[:2] + counts + question + records + authority


def status(gateway, value, to, patience=15):
    try:
        with connect(gateway.address, timeout=patience) as stream:
            fields = f"Proxy-Authorization: {value}\r\n" if value else ""
            stream.sendall(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{fields}\r\n".encode())
            return stream.recv(65536)[9:12].decode() or "closed"
    except OSError as error:
        return type(error).__name__


def many(gateway, value):
    """Connection attempts, as packets on loopback that begin a connection to this port."""
    port, attempts, is_over = free_port(), set(), threading.Event()
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    wire.bind(("lo", 0))
    wire.settimeout(1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)

    def listen():
        while not is_over.is_set():
            try:
                packet = wire.recv(128)
            except TimeoutError:
                continue
            at = (packet[0] & 15) * 4
            if packet[9] == 6 and packet[at + 13] & 0x12 == 2 and packet[at + 2 : at + 4] == struct.pack("!H", port):
                attempts.add(packet[16:20])

    listener, cpu = threading.Thread(target=listen), Cpu(gateway.pid)
    listener.start()
    answered = status(gateway, value, f"many.example:{port}")
    spent = cpu.spent()
    is_over.set()
    listener.join()
    return spent, None, f"{len(attempts)} connection attempts; answer {answered}"


def at_once(gateway, values, to):
    threads = [threading.Thread(target=status, args=(gateway, value, to)) for value in values]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


def carried(stage):
    """A literal address that the policy refuses is answered 403 before a token is read, any other one 407."""
    gateway = stage.gateway(egress="")
    answers = {address: status(gateway, None, f"[{address}]:443") for address in SPECIAL}
    stage.stop(gateway)
    return "; ".join(
        f"{address}: {'refused' if answer == '403' else 'LET THROUGH'}" for address, answer in answers.items()
    )


def own_address(stage, address="11.0.0.1"):
    """In a network namespace, where `address` is the machine's own, `postern up` and a listener on the address."""
    script = f"""
import subprocess, sys, socket, re
subprocess.run("ip link set lo up; ip addr add {address}/32 dev lo", shell=True, check=True)
listener = socket.create_server(("{address}", 443))
up = subprocess.Popen([sys.argv[1], "up", "--data", sys.argv[2]], stdout=subprocess.PIPE, text=True)
while "Ctrl-C" not in (line := up.stdout.readline()) and line: pass
stream = socket.create_connection(("127.0.0.1", 8118), timeout=30)
stream.sendall(b"CONNECT {address}:443 HTTP/1.1\\r\\nHost: {address}\\r\\n\\r\\n")
print(stream.recv(4096)[9:12].decode())
up.terminate()
up.wait()
"""
    command = ["unshare", "-n", "python3", "-c", script, postern(), stage.path("up")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    answered = done.stdout.strip() or "nothing"
    return f"{address}:443, the gateway's own: answer {answered}"
