"""Fetches URL over HTTP/3 through the proxy at PROXY, a URL, by CONNECT-UDP, and prints the body. The line on standard input is the
value of Proxy-Authorization; there is none if it is empty.

usage: http3_by_proxy.py h1|h2 PROXY CA URL
"""

import sys

from curl_cffi import Curl, CurlOpt

version, proxy, ca, url = sys.argv[1:]
authorization = sys.stdin.readline().strip()

received = []
curl = Curl()
curl.setopt(CurlOpt.URL, url.encode())
curl.setopt(CurlOpt.HTTP_VERSION, 31)  # CURL_HTTP_VERSION_3ONLY
curl.setopt(CurlOpt.PROXY, proxy.encode())
if proxy.startswith("https:"):
    curl.setopt(CurlOpt.PROXYTYPE, {"h1": 2, "h2": 3}[version])  # CURLPROXY_HTTPS, CURLPROXY_HTTPS2
curl.setopt(CurlOpt.HTTPPROXYTUNNEL, 1)
if authorization:
    curl.setopt(CurlOpt.PROXYHEADER, [f"Proxy-Authorization: {authorization}".encode()])
curl.setopt(CurlOpt.HEADEROPT, 1)  # CURLHEADER_SEPARATE: the token is the proxy's alone
for option in (CurlOpt.CAINFO, CurlOpt.PROXY_CAINFO):
    curl.setopt(option, ca.encode())
curl.setopt(CurlOpt.WRITEFUNCTION, received.append)
curl.setopt(CurlOpt.VERBOSE, 1)
curl.setopt(CurlOpt.TIMEOUT, 40)
curl.perform()
print(b"".join(bytes(some) for some in received).decode())
