// Envoy, as a proxy of other authors: its configuration and its process.

import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { free, proxy } from './proxies.js';

const python = process.env.POSTERN_PYTHON_CLIENTS;
const envoy = python && join(dirname(python), 'envoy');
export const skip = envoy && existsSync(envoy) ? false : 'there is no Envoy: scripts/tools/python-clients installs it';

export const kinds = 'type.googleapis.com/envoy.extensions';
export const address = (port) => ({ socket_address: { address: '127.0.0.1', port_value: port } });

/**
 * Runs Envoy with these listeners, by port, and clusters while `act` runs, over TLS if there are `files`; `act` gets a way to read
 * Envoy's counters.
 */
export async function withEnvoy(folder, listeners, clusters, act, files) {
    const admin = await free();
    const static_resources = {
        listeners: Object.entries(listeners).map(([port, filter]) => ({
            address: address(Number(port)),
            filter_chains: [{ filters: [filter], ...(files && { transport_socket: tls(files) }) }],
        })),
        clusters,
    };
    const file = join(folder, `envoy-${admin}.json`);
    await writeFile(file, JSON.stringify({ admin: { address: address(admin) }, static_resources }));
    const args = ['--config-path', file, '--log-level', 'error', '--concurrency', '1', '--disable-hot-restart'];
    const stopEnvoy = await proxy(envoy, args, [admin]);
    const ask = (path) => fetch(`http://127.0.0.1:${admin}${path}`);
    try {
        while (!(await ask('/ready')).ok) await new Promise((done) => setTimeout(done, 20));
        return await act(async (counter) => {
            const text = await (await ask(`/stats?filter=^${counter}$`)).text();
            return Number(text.split(': ')[1]);
        });
    } finally {
        await stopEnvoy();
    }
}

/** Any target, by the name or address in the request: the filter before the router, and the cluster behind it. */
export function anywhere() {
    const dns_cache_config = { name: 'dns', dns_lookup_family: 'V4_ONLY' };
    const filter = {
        name: 'envoy.filters.http.dynamic_forward_proxy',
        typed_config: { '@type': `${kinds}.filters.http.dynamic_forward_proxy.v3.FilterConfig`, dns_cache_config },
    };
    const cluster = {
        name: 'anywhere',
        lb_policy: 'CLUSTER_PROVIDED',
        cluster_type: {
            name: 'envoy.clusters.dynamic_forward_proxy',
            typed_config: { '@type': `${kinds}.clusters.dynamic_forward_proxy.v3.ClusterConfig`, dns_cache_config },
        },
    };
    return { filter, cluster };
}

function tls({ certificate, key }) {
    const certificates = [{ certificate_chain: { filename: certificate }, private_key: { filename: key } }];
    return {
        name: 'envoy.transport_sockets.tls',
        typed_config: {
            '@type': `${kinds}.transport_sockets.tls.v3.DownstreamTlsContext`,
            common_tls_context: { tls_certificates: certificates, alpn_protocols: ['h2', 'http/1.1'] },
        },
    };
}

/** An HTTP proxy for CONNECT, and what else is an upgrade, with this route and these filters before the router. */
export function connectProxy(route, filters = [], upgrades = ['CONNECT']) {
    return {
        name: 'envoy.filters.network.http_connection_manager',
        typed_config: {
            '@type': `${kinds}.filters.network.http_connection_manager.v3.HttpConnectionManager`,
            stat_prefix: 'connect',
            route_config: {
                virtual_hosts: [{ name: 'all', domains: ['*'], routes: [{ match: { connect_matcher: {} }, route }] }],
            },
            upgrade_configs: upgrades.map((upgrade_type) => ({ upgrade_type })),
            http2_protocol_options: { allow_connect: true },
            http_filters: [
                ...filters,
                {
                    name: 'envoy.filters.http.router',
                    typed_config: { '@type': `${kinds}.filters.http.router.v3.Router` },
                },
            ],
        },
    };
}
