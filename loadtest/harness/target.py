"""The target of the tunnels, a separate process: two listeners, whose ports it prints on a line.

The first answers and closes, because k6 reads a tunnel to its end. The second keeps each tunnel open for HOLD seconds,
sends bytes four times a second, and then closes. It stops when its standard input closes, so that it never outlives a
run.

usage: python3 target.py HOLD [ADDRESS]        ADDRESS: where it listens [127.0.0.1]
"""

import asyncio, contextlib, sys


async def answer(reader, writer):
    writer.write(b"hello\n")
    await close(writer)


async def hold(reader, writer):
    with contextlib.suppress(OSError):
        for _ in range(round(4 * HOLD)):
            writer.write(b"x" * 1024)
            await writer.drain()
            await asyncio.sleep(0.25)
    await close(writer)


async def close(writer):
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def main():
    servers = [await asyncio.start_server(serve, ADDRESS, 0, backlog=1024) for serve in (answer, hold)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    HOLD = float(sys.argv[1])
    ADDRESS = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    asyncio.run(main())
