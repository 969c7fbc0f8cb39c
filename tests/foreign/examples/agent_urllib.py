# tests/foreign/examples/agent_urllib.py: a page through the agent, with Python's standard library.
#
#     python3 agent_urllib.py http://127.0.0.1:8118 https://example.com/
import sys
import urllib.request

agent, url = sys.argv[1:]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": agent, "https": agent}))
print(opener.open(url).read().decode())
