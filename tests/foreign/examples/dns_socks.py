# tests/foreign/examples/dns_socks.py: names' addresses by UDP through the agent, with dnspython and PySocks.
#
#     pip install dnspython PySocks; python3 dns_socks.py 127.0.0.1:8118 9.9.9.9:53 example.com
import sys

import dns.message
import socks

agent, server, *names = sys.argv[1:]
(agent, agent_port), (server, port) = agent.rsplit(":", 1), server.rsplit(":", 1)
sock = socks.socksocket(socks.socket.AF_INET, socks.socket.SOCK_DGRAM)
sock.set_proxy(socks.SOCKS5, agent, int(agent_port))
sock.settimeout(40)
for name in names:
    query = dns.message.make_query(name, "A")
    sock.sendto(query.to_wire(), (server, int(port)))
    answer = dns.message.from_wire(sock.recvfrom(4096)[0])
    assert query.is_response(answer), answer
    print(*(record.address for records in answer.answer for record in records))
