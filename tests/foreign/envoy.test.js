// Envoy in front of the gateway, over HTTP/1.1 and HTTP/2, and behind it as the next hop of its tunnels.

import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import net from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { echoed } from './connect.js';
import { address, anywhere, connectProxy, kinds, skip, withEnvoy } from './envoy.js';
import { daemon, mint, run } from './postern.js';
import { free } from './proxies.js';
import { stage } from './stage.js';
import { echo } from './targets.js';

const within = { timeout: 60_000, skip };

let stop, scratch, system, ca, secure, target;
before(async () => {
    if (skip) return;
    ({ stop, scratch, system, ca, secure } = await stage());
    target = await echo();
});
after(async () => {
    await target?.close();
    await stop?.();
});

/** A gateway with these sections beside the usual ones. */
async function gatewayWith(name, more) {
    return daemon('gateway', join(scratch.path, `${name}.toml`), `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        issuer = { directory = "http://${system.issuer}/.well-known/private-token-issuer-directory" }
        challenge = { issuer_name = "issuer.example", origin = "proxy.example" }
        store = { path = "${join(scratch.path, name)}" }
        ${more}
    `);
}

/** The gateway as a cluster, reached over this version of HTTP. */
function cluster(gateway, version) {
    const protocol = version === 2 ? { http2_protocol_options: {} } : { http_protocol_options: {} };
    return {
        name: 'gateway',
        load_assignment: {
            cluster_name: 'gateway',
            endpoints: [{ lb_endpoints: [{ endpoint: { address: address(Number(gateway.split(':')[1])) } }] }],
        },
        typed_extension_protocol_options: {
            'envoy.extensions.upstreams.http.v3.HttpProtocolOptions': {
                '@type': `${kinds}.upstreams.http.v3.HttpProtocolOptions`,
                explicit_http_config: protocol,
            },
        },
    };
}

/** Runs `act`; the gateway must have opened this many tunnels. */
async function opens(gateway, count, act) {
    const before = await gateway.metrics();
    const result = await act();
    assert.equal((await gateway.metrics()).opened - before.opened, count);
    return result;
}

/** A page through the HTTP proxy at this port. */
function page(port, authorization) {
    const credentials = authorization ? ['--proxy-header', `Proxy-Authorization: ${authorization}`] : [];
    const args = ['--silent', '--show-error', '--max-time', '40', '--cacert', ca, '-x', `http://127.0.0.1:${port}`];
    return run('curl', [...args, ...credentials, secure.url]);
}

for (const version of [1, 2]) {
    // A token stands in the configuration: each listener opens one tunnel.
    test(`Envoy leads TCP connections through the gateway by HTTP/${version}`, within, async () => {
        const listeners = {};
        for (const token of await mint({ ...system, count: 3 })) {
            listeners[await free()] = {
                name: 'envoy.filters.network.tcp_proxy',
                typed_config: {
                    '@type': `${kinds}.filters.network.tcp_proxy.v3.TcpProxy`,
                    stat_prefix: 'tunnel',
                    cluster: 'gateway',
                    max_connect_attempts: 1,
                    tunneling_config: {
                        hostname: `127.0.0.1:${target.port}`,
                        headers_to_add: [{ header: { key: 'Proxy-Authorization', value: token } }],
                    },
                },
            };
        }
        await withEnvoy(scratch.path, listeners, [cluster(system.gateway, version)], async (counter) => {
            const ports = Object.keys(listeners).map(Number);
            await opens(system, 3, () => Promise.all(ports.map(async (port) => {
                const bytes = randomBytes(1 << 20);
                const back = version === 2 ? echoed : echoedBeforeTheEnd;
                assert.ok((await back(net.connect(port, '127.0.0.1'), bytes)).equals(bytes));
            })));
            assert.equal(await counter('cluster.gateway.upstream_cx_total'), version === 2 ? 1 : 3);
            await opens(system, 0, () => refused(ports[0]));
        });
    });

    test(`Envoy passes CONNECT on to the gateway by HTTP/${version}`, within, async () => {
        const port = await free();
        const route = { cluster: 'gateway', timeout: '0s', upgrade_configs: [{ upgrade_type: 'CONNECT' }] };
        await withEnvoy(scratch.path, { [port]: connectProxy(route) }, [cluster(system.gateway, version)], async () => {
            const tokens = await mint({ ...system, count: 6 });
            const results = await opens(system, 6, () => Promise.all(tokens.map((token) => page(port, token))));
            for (const { stdout, stderr } of results) assert.ok(stdout.includes(secure.text), stderr);
            for (const spent of [tokens[0], 'PrivateToken token="none"']) {
                const { stderr } = await opens(system, 0, () => page(port, spent));
                assert.match(stderr, /response 407/);
            }
        });
    });
}

/** Like `echoed`, but the client ends last: over HTTP/1.1 Envoy takes one side's end for the end of both. */
async function echoedBeforeTheEnd(socket, bytes) {
    const received = [];
    let missing = bytes.length;
    socket.write(bytes);
    while (missing > 0) {
        const [some] = await once(socket, 'data');
        received.push(some);
        missing -= some.length;
    }
    socket.end();
    return Buffer.concat(received);
}

/** A connection that ends without a byte, or breaks. */
async function refused(port) {
    const socket = net.connect(port, '127.0.0.1');
    let got = 0;
    socket.on('data', (some) => (got += some.length)).on('error', () => {});
    await once(socket, 'close');
    assert.equal(got, 0);
}

test('the gateway leads its tunnels on through Envoy, which demands a password', within, async () => {
    const port = await free();
    const { filter, cluster } = anywhere();
    const hashed = createHash('sha1').update('p-w').digest('base64'); // the only hash that it takes
    const filters = [
        {
            name: 'envoy.filters.http.basic_auth',
            typed_config: {
                '@type': `${kinds}.filters.http.basic_auth.v3.BasicAuth`,
                authentication_header: 'proxy-authorization',
                users: { inline_string: `u:{SHA}${hashed}` },
            },
        },
        filter,
    ];
    const connect = [{ upgrade_type: 'CONNECT', connect_config: {} }];
    const listener = connectProxy({ cluster: 'anywhere', timeout: '0s', upgrade_configs: connect }, filters);
    await withEnvoy(scratch.path, { [port]: listener }, [cluster], async (counter) => {
        for (const [password, count] of [['p-w', 3], ['wrong', 0]]) {
            const hop = `{ name = "envoy", urls = ["http://127.0.0.1:${port}"], user = "u", password = "${password}" }`;
            const gateway = await gatewayWith(`next-hop-${password}`, `egress = {
                private = true, ports = "any", next_hops = [${hop}],
                rules = [{ allow = ["127.0.0.0/8", "*"], via = "envoy" }] }`.replaceAll('\n', ' '));
            try {
                const tokens = await mint({ issuer: system.issuer, gateway: gateway.address, count: 3 });
                const results = await opens(gateway, count, () =>
                    Promise.all(tokens.map((token) => page(gateway.address.split(':')[1], token))));
                for (const { stdout, stderr } of results) {
                    if (count > 0) assert.ok(stdout.includes(secure.text), stderr);
                    else assert.match(stderr, /response 502/);
                }
            } finally {
                await gateway.stop();
            }
        }
        assert.equal(await counter('cluster.anywhere.upstream_cx_total'), 3);
    });
});
