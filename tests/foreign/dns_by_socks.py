"""Asks the DNS server HOST:PORT, several times, through the SOCKS5 proxy AGENT by UDP ASSOCIATE, and prints the addresses.

usage: dns_by_socks.py AGENT HOST:PORT NAME COUNT
"""

import sys

import dns.message
import dns.query
import socks

agent, server, name, count = sys.argv[1:]
(proxy, proxy_port), (host, port) = agent.rsplit(":", 1), server.rsplit(":", 1)

sock = socks.socksocket(socks.socket.AF_INET, socks.socket.SOCK_DGRAM)
sock.set_proxy(socks.SOCKS5, proxy, int(proxy_port))
sock.settimeout(40)
for _ in range(int(count)):
    query = dns.message.make_query(name, "A")
    sock.sendto(query.to_wire(), (host, int(port)))
    answer = dns.message.from_wire(sock.recvfrom(4096)[0])
    assert query.is_response(answer), answer
    print(*(rdata.address for rrset in answer.answer for rdata in rrset))
