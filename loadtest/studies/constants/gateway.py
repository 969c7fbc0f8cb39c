"""A gateway's tunnels: CPU of each process, memory, descriptors and bytes; and the issuer's CPU a token."""

import statistics, time

from purse import Purse, load
from rig import reading, tokens
from rig.configs import memcached as store
from tables import cpu_us, table
from tunnels import Target, slab_sizes, tunnel
from wire import watch, wire


def tunnels(report, programs, given):
    clients = (1, 16, 64)
    count = given.rounds * len(clients) * given.tunnels * 2 + len(clients) * 1000 + given.idle + 5000
    issuer = programs.issuer()
    server = programs.memcached(1024, threads=4)
    router = programs.twemproxy([server], timeout=400)
    # As configured by default, but for a deadline that a busy machine keeps, and limits that no tunnel meets.
    gateway = lambda endpoint, **more: programs.gateway(store(endpoint.address, timeout="1s", **more))
    direct, routed = gateway(server), gateway(router)
    purse = mint(report, programs, issuer, direct, count)
    drive(report, {"directly": direct, "through twemproxy": routed}, server, router, clients, purse, given)
    watch(report, server)
    idle(report, direct, purse, given.idle)
    gibibytes(report, direct, purse, given.rounds)
    programs.stop(direct, routed)
    wire(report, programs, gateway(server), server, clients, purse)


def mint(report, programs, issuer, gateway, count):
    before, path = cpu_us(issuer), programs.path("tokens")
    purse = Purse(path, tokens.mint(programs.issuer_url, gateway, count, path))
    head = ["tokens", "CPU of the issuer a token, HTTP included, µs"]
    table(report, "The issuer", head, [[f"{count:,}", f"{(cpu_us(issuer) - before) / count:.0f}"]])
    return purse


def drive(report, fleet, server, router, clients, purse, given):
    """CPU of every process for one tunnel: connect, CONNECT with a fresh token, one byte there and back, close."""
    rows = []
    for name, gateway in fleet.items():
        for at_once in clients:
            load(gateway, purse, 100, at_once)  # warm up
            costs = []
            for _ in range(given.rounds):
                used = reading.Used({"gateway": [gateway.pid], "memcached": [server.pid], "router": [router.pid]})
                load(gateway, purse, given.tunnels, at_once)
                costs.append([seconds * 1e6 / given.tunnels for [seconds] in used.read().values()])
            own, memcached, routing = (f"{statistics.median(column):.1f}" for column in zip(*costs))
            rows.append([name, at_once, own, memcached, routing if "twem" in name else ""])
    table(report, "CPU for one tunnel", ["memcached", "clients", "gateway µs", "memcached µs", "twemproxy µs"], rows)


def idle(report, gateway, purse, count):
    target = Target()
    few = [tunnel(gateway.address, target.address, purse.one()) for _ in range(200)]
    memory, open_before = reading.resident(gateway.pid), reading.descriptors(gateway.pid)
    many = [tunnel(gateway.address, target.address, purse.one()) for _ in range(count - 200)]
    each = (reading.resident(gateway.pid) - memory) / len(many)
    files = (reading.descriptors(gateway.pid) - open_before) / len(many)
    cpu, began = cpu_us(gateway), time.monotonic()
    time.sleep(5)
    resting = (cpu_us(gateway) - cpu) / (time.monotonic() - began)
    for stream in few + many:
        stream.close()
    kinds = slab_sizes(("TCP", "sock_inode_cache", "dentry", "filp", "eventpoll_epi"))
    head = ["tunnels", "resident bytes each", "descriptors each", "CPU of the gateway while all rest, µs a second"]
    table(report, "Open tunnels", head, [[f"{count:,}", f"{each:.0f}", f"{files:.2f}", f"{resting:.0f}"]])
    sizes = ", ".join(f"{name} {size}" for name, size in kinds.items())
    sizes = f"{sizes}; together {sum(kinds.values())}" if sizes else "not to be read"
    report.add(f"The kernel's objects for one socket, bytes (/proc/slabinfo): {sizes}.")


def gibibytes(report, gateway, purse, rounds):
    target, buffer, costs = Target(), bytearray(1 << 20), []
    for _ in range(rounds):
        stream = tunnel(gateway.address, target.address, purse.one())
        before, left = reading.cpu(gateway.pid), 1 << 30
        stream.sendall(b"S")
        while left > 0:
            got = stream.recv_into(buffer)
            assert got, "the tunnel was closed"
            left -= got
        costs.append(reading.cpu(gateway.pid) - before)
        stream.close()
    head = ["rounds of 1 GiB", "CPU of the gateway a GiB, s: median", "least"]
    row = [rounds, f"{statistics.median(costs):.3f}", f"{min(costs):.3f}"]
    table(report, "Bytes through a tunnel", head, [row])
