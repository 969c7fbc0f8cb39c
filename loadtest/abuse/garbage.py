"""100,000 tokens that are no good, of each class, over 16 connections that plain HTTP keeps: the CPU that a refusal costs."""

import base64, os, re, threading
from abuse import honest
from abuse.measure import Cpu
from rig.clients import Clients
from rig.tokens import request as connect

COUNT = 100_000
NOWHERE = "example.com:443"


def classes(good, spent):
    """A request of each class, made from a good token and a spent one; `None` varies it from request to request."""
    raw = base64.urlsafe_b64decode(re.search(r'token="([^"]+)"', good)[1])
    header = lambda token: 'PrivateToken token="' + base64.urlsafe_b64encode(token).decode() + '"'
    changed = lambda start, length: lambda: header(raw[:start] + os.urandom(length) + raw[start + length :])
    return {
        "no token": lambda: None,
        "another scheme": lambda: "Basic YTpi",
        "garbage in place of a token": lambda: 'PrivateToken token="'
        + base64.urlsafe_b64encode(os.urandom(300)).decode()
        + '"',
        "a token for another challenge": changed(34, 32),
        "a token of an unknown key": changed(66, 32),
        "a bad signature": changed(98, 256),
        "a spent token": lambda: spent,
        "a port that is refused": lambda: None,
    }


def scenarios(stage):
    stage.issuer()
    gateway = stage.gateway(egress="", source={"refusals": 0})  # each is refused for what it is, not for those before
    good, spent, *values = stage.mint(gateway, 2 + honest.COUNT)
    one = Clients([gateway.address], 1)
    one.run([[connect(spent, "challenge.invalid:443")]])
    clients = Clients([gateway.address], 16)
    for name, make in classes(good, spent).items():
        to = "example.com:22" if "port" in name else NOWHERE
        count = COUNT // 2 if name == "a bad signature" else COUNT
        distinct = [with_token(make(), to) for _ in range(1000)]
        clients.run([distinct])
        cpu = Cpu(gateway.pid)
        seen = clients.run([(distinct[n % 1000] for n in range(count))])
        answers = ", ".join(f"{number:,} × {status}" for status, number in seen.items())
        yield f"gateway: {name}", None, cpu.spent() / count, None, answers
    clients.close()
    one.close()
    stage.stop(gateway)
    yield from beside(stage)


def with_token(value, to):
    """A refused CONNECT would end its connection."""
    field = f"Proxy-Authorization: {value}\r\n" if value else ""
    return f"GET http://{to}/ HTTP/1.1\r\nHost: {to}\r\n{field}\r\n".encode()


def beside(stage):
    """Half garbage and half the dearest class, beside honest clients."""
    gateway = stage.gateway()
    good, *values = stage.mint(gateway, 1 + honest.COUNT)
    kinds, count, is_over = classes(good, good), 0, threading.Event()
    makers = kinds["garbage in place of a token"], kinds["a bad signature"]
    flood = [with_token(makers[n % 2](), NOWHERE) for n in range(1000)]
    clients, cpu = Clients([gateway.address], 16), Cpu(gateway.pid)

    def attack():
        nonlocal count
        while count < COUNT or not is_over.is_set():
            count += sum(clients.run([flood]).values())

    thread = threading.Thread(target=attack)
    thread.start()
    outcome = honest.tunnels(gateway.address, values)
    is_over.set()
    thread.join()
    spent = cpu.spent() / count
    yield "gateway: garbage and bad signatures on 16 connections", outcome, spent, None, f"{count:,} refused"
