"""The minimal configuration of each program that is measured."""

# deploy/twemproxy/nutcracker.yml with the servers of the measurement.
TWEMPROXY = """spent:
  listen: {listen}
  hash: fnv1a_64
  hash_tag: "||"
  distribution: ketama
  auto_eject_hosts: false
  timeout: {timeout}
  preconnect: true
  servers:
"""

ISSUER = """[listen]
address = "{address}"
admin = "{admin}"
[keys]
directory = "{keys}"
"""

GATEWAY = """[listen]
address = "{address}"
admin = "{admin}"
workers = {workers}
[issuer]
directory = "{issuer}/.well-known/private-token-issuer-directory"
[challenge]
issuer_name = "issuer.example"
origin = "proxy.example"
[egress]
private = true
ports = "any"
"""

# Limits that many idle kept connections do not reach.
LIMITS = {"connections": 100000, "idle_timeout": "1h", "header_timeout": "10s"}


def section(name, keys):
    lines = [f"[{name}]"]
    for key, value in keys.items():
        shown = str(value).replace("'", '"') if isinstance(value, (list, int)) else f'"{value}"'
        lines.append(f"{key} = {shown}")
    return "\n".join(lines) + "\n"


def issuer(address, admin, keys):
    """One key, and no rotation meanwhile."""
    return ISSUER.format(address=address, admin=admin, keys=keys)


def gateway(address, admin, issuer, store, workers=1, limits=None, tls=None, udp=False):
    """`issuer` is a URL, `store` the section `[store]`; by default it has one worker and the limits of the default.
    `tls` are the keys of `[tls]`; with `udp`, it carries UDP to any port."""
    text = GATEWAY.format(address=address, admin=admin, workers=workers, issuer=issuer)
    text += 'udp = "any"\n' if udp else ""
    text += section("tls", tls) if tls else ""
    return text + (section("limits", limits) if limits else "") + store


def twemproxy(listen, servers, timeout):
    """One pool of the addresses `servers`; `timeout` in milliseconds."""
    text = TWEMPROXY.format(listen=listen, timeout=timeout)
    return text + "".join(f"    - {server}:1 spent-{n + 1}\n" for n, server in enumerate(servers))


def memcached(address, **keys):
    """A `[store]` section for memcached."""
    return section("store", {"kind": "memcached"}) + section("store.memcached", {"addresses": [address]} | keys)


def embedded(path):
    """A `[store]` section for the embedded store."""
    return section("store", {"kind": "embedded", "path": path})
