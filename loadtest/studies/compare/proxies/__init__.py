"""The proxies that are compared, in the order in which tables show them: the floor, then the others, then Postern."""

from . import apache, envoy, haproxy, postern, squid, tinyproxy

ALL = [
    haproxy.Haproxy,
    squid.Squid,
    envoy.Envoy,
    tinyproxy.Tinyproxy,
    apache.Apache,
    postern.Embedded,
    postern.Before,
    postern.Pipelined,
    postern.Pooled,
]
