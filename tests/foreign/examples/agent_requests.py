# tests/foreign/examples/agent_requests.py: a page through the agent, with requests.
#
#     python3 agent_requests.py http://127.0.0.1:8118 https://example.com/
#     python3 agent_requests.py socks5h://127.0.0.1:8118 https://example.com/     (needs PySocks)
import sys

import requests

agent, url = sys.argv[1:]
response = requests.get(url, proxies={"http": agent, "https": agent})
response.raise_for_status()
print(response.text)
