"""Fetches URL through the proxy AGENT with one of Python's HTTP clients, and prints the body.

usage: get.py http.client|urllib|requests|requests-socks AGENT CA URL
"""

import http.client
import ssl
import sys
import urllib.request
from urllib.parse import urlsplit

client, agent, ca, url = sys.argv[1:]

if client == "http.client":
    host, port = agent.split(":")
    target = urlsplit(url)
    context = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=40)
    connection.set_tunnel(target.hostname, target.port)
    connection.request("GET", target.path)
    body = connection.getresponse().read().decode()
elif client == "urllib":
    proxy = f"http://{agent}"
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({"http": proxy, "https": proxy}),
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)),
    )
    body = opener.open(url, timeout=40).read().decode()
else:
    import requests

    proxy = f"socks5h://{agent}" if client == "requests-socks" else f"http://{agent}"
    response = requests.get(url, proxies={"http": proxy, "https": proxy}, verify=ca, timeout=40)
    response.raise_for_status()
    body = response.text

print(body)
