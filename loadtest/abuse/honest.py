"""Honest clients beside an attack: each comes when its time has come, whatever became of the others, from one of a
hundred addresses, and is patient for ten seconds."""

import asyncio, collections, os, signal
from rig.programs import served

COUNT = 1000
PATIENCE = 10
A_SECOND = 100


def target(listener):
    """Sends one byte on each connection and closes it."""
    while True:
        try:
            with listener.accept()[0] as stream:
                stream.send(b"x")
        except OSError:
            pass


def tunnels(address, values, tls=None):
    """Fresh tokens, each to be answered 200 and then the target's byte: how many of each outcome."""
    to, child = served(target)
    try:
        requests = [f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: {value}\r\n\r\n" for value in values]
        return run(address, [request.encode() for request in requests], b"x", tls)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def requests(address, request, tls=None):
    """The same request again and again; 200 is served."""
    return run(address, [request] * COUNT, None, tls)


def run(address, requests, byte, tls):
    return asyncio.run(arrive(address, requests, byte, tls))


async def arrive(address, requests, byte, tls):
    began, tasks = asyncio.get_running_loop().time(), []
    for number, request in enumerate(requests):
        await asyncio.sleep(began + number / A_SECOND - asyncio.get_running_loop().time())
        tasks.append(asyncio.create_task(one(address, request, number, byte, tls)))
    return collections.Counter(await asyncio.gather(*tasks))


async def one(address, request, number, byte, tls):
    stage, writer = "no connection", None
    host, port = address.rsplit(":", 1)
    try:
        async with asyncio.timeout(PATIENCE):
            source = (f"127.9.0.{number % 100 + 1}", 0)
            name = {"server_hostname": "localhost"} if tls else {}
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=source, ssl=tls, **name)
            stage = "no answer"
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            if status != 200:
                return str(status)
            stage = "no byte of the target"
            if byte and await reader.read(1) != byte:
                return stage
            return "served"
    except TimeoutError:
        return f"{stage} in {PATIENCE} s"
    except (OSError, asyncio.IncompleteReadError) as error:
        return f"{stage}: {type(error).__name__}"
    finally:
        if writer:
            writer.close()


def text(outcomes):
    """How many were served, and the reasons of the others."""
    others = [f"{count} × {outcome}" for outcome, count in outcomes.most_common() if outcome != "served"]
    return f"{outcomes['served']:,} of {outcomes.total():,}" + (f" ({', '.join(others)})" if others else "")
