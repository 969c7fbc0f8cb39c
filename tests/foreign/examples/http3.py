# tests/foreign/examples/http3.py: a page over HTTP/3 through the agent, with libcurl (curl_cffi 0.17).
#
#     pip install curl_cffi==0.17.0; python3 http3.py http://127.0.0.1:8118 https://cloudflare-quic.com/
import sys

from curl_cffi import CurlHttpVersion, CurlOpt, requests

agent, url = sys.argv[1:]
# Without a tunnel libcurl would ask the proxy for the page, over TCP.
tunnel = {CurlOpt.HTTPPROXYTUNNEL: 1}
response = requests.get(url, proxy=agent, http_version=CurlHttpVersion.V3ONLY, curl_options=tunnel)
response.raise_for_status()
print(response.text)
