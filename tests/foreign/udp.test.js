// HTTP/3 through the gateway by CONNECT-UDP to aioquic: libcurl over HTTP/1.1 and HTTP/2, aioquic over HTTP/2; and on through Envoy.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { anywhere, connectProxy, skip as noEnvoy, withEnvoy } from './envoy.js';
import { fetch3, fetchByCapsules, page3, skip } from './http3.js';
import { mint } from './postern.js';
import { free } from './proxies.js';
import { secureGateway, stage } from './stage.js';

const within = { timeout: 60_000, skip };
const text = 'a page over HTTP/3';

let stop, scratch, system, ca, files, gateway, server;
before(async () => {
    if (skip) return;
    ({ stop, scratch, system, ca } = await stage());
    files = { certificate: join(scratch.path, 'cert.pem'), key: join(scratch.path, 'key.pem') };
    gateway = await secureGateway({ scratch, system }, 'udp', 'egress = { private = true, udp = "any" }');
    server = await page3(text, files);
});
after(async () => {
    server?.stop();
    await gateway?.stop();
    await stop?.();
});

/** Fetches the page through a gateway with this token; the gateway must open as many tunnels as `count`. */
async function page(version, gateway, authorization, count) {
    const before = await gateway.metrics();
    const result = await fetch3(version, `https://${gateway.address}`, { ca, url: server.url, authorization });
    const { opened } = await gateway.metrics();
    assert.equal(opened - before.opened, count, result.stderr);
    return result;
}

for (const version of ['h1', 'h2']) {
    test(`a page by libcurl, ${version} to the gateway, for one token`, within, async () => {
        const [authorization] = await mint({ issuer: system.issuer, gateway: gateway.address, count: 1, ca });
        const result = await page(version, gateway, authorization, 1);
        assert.equal(result.code, 0, result.stderr);
        assert.ok(result.stdout.includes(text), result.stdout);
        const replay = await page(version, gateway, authorization, 0);
        assert.notEqual(replay.code, 0);
        assert.match(replay.stderr, /407/);
    });
}

test('a page by aioquic, whose packets a client of h2 writes as capsules, for one token', within, async () => {
    const [authorization] = await mint({ issuer: system.issuer, gateway: gateway.address, count: 1, ca });
    const { opened } = await gateway.metrics();
    const result = await fetchByCapsules(gateway.address, { ca, url: server.url, authorization });
    assert.equal(result.code, 0, result.stderr);
    assert.ok(result.stdout.includes(text), result.stdout);
    const replay = await fetchByCapsules(gateway.address, { ca, url: server.url, authorization });
    assert.equal(replay.code, 1);
    assert.match(replay.stderr, /the proxy answered 407/);
    assert.equal((await gateway.metrics()).opened - opened, 1);
});

// The agent speaks HTTP/1.1 to programs.
test('a page by libcurl through the agent, which has the token', within, async () => {
    const before = await system.metrics();
    const result = await fetch3('h1', `http://${system.agent}`, { ca, url: server.url });
    assert.equal(result.code, 0, result.stderr);
    assert.ok(result.stdout.includes(text), result.stdout);
    assert.equal((await system.metrics()).opened - before.opened, 1);
});

/** Runs an Envoy that carries UDP for everyone while `act` runs. */
async function withOpenEnvoy(hop, act) {
    const { filter, cluster } = anywhere();
    const upgrades = ['CONNECT', 'CONNECT-UDP'];
    const upgrade_configs = upgrades.map((upgrade_type) => ({ upgrade_type, connect_config: {} }));
    const listener = connectProxy({ cluster: 'anywhere', timeout: '0s', upgrade_configs }, [filter], upgrades);
    const port = await free();
    const tls = hop === 'https' && files;
    await withEnvoy(scratch.path, { [port]: listener }, [cluster], (counter) => act(port, counter), tls);
}

/** Runs such an Envoy, and a gateway before it. */
async function beforeEnvoy(hop, act) {
    const keys = hop === 'https' ? `ca = "${ca}"` : 'udp = true';
    await withOpenEnvoy(hop, async (port, counter) => {
        const egress = `egress = { private = true, udp = "any", via = "envoy",
            next_hops = [{ name = "envoy", urls = ["${hop}://localhost:${port}"], ${keys} }] }`;
        const through = await secureGateway({ scratch, system }, `through-${port}`, egress.replaceAll('\n', ' '));
        try {
            await act(through, counter);
        } finally {
            await through.stop();
        }
    });
}

// The control: the same client and page without Postern.
test('a page by libcurl through Envoy alone', { ...within, skip: skip || noEnvoy }, () =>
    withOpenEnvoy('https', async (port, counter) => {
        const result = await fetch3('h2', `https://localhost:${port}`, { ca, url: server.url });
        assert.equal(result.code, 0, result.stderr);
        assert.ok(result.stdout.includes(text), result.stdout);
        assert.equal(await counter('http.connect.downstream_rq_2xx'), 1);
    }));

for (const version of ['h1', 'h2']) {
    const name = `a page by libcurl, ${version} to the gateway, which goes on through Envoy by HTTP/2`;
    test(name, { ...within, skip: skip || noEnvoy }, () => beforeEnvoy('https', async (through, counter) => {
        const [authorization] = await mint({ issuer: system.issuer, gateway: through.address, count: 1, ca });
        const result = await page(version, through, authorization, 1);
        assert.equal(result.code, 0, result.stderr);
        assert.ok(result.stdout.includes(text), result.stdout);
        assert.equal(await counter('http.connect.downstream_rq_2xx'), 1);
    }));
}

// RFC 9298, section 3.3, wants 101.
test('Envoy opens UDP over HTTP/1.1 with 200, which costs one token', { ...within, skip: skip || noEnvoy }, () =>
    beforeEnvoy('http', async (through, counter) => {
        const tokens = await mint({ issuer: system.issuer, gateway: through.address, count: 2, ca });
        for (const token of [...tokens, tokens[1]]) {
            const { stderr } = await page('h2', through, token, 0);
            assert.match(stderr, /response 403/); // not 407: the second token stays unspent
        }
        assert.equal(await counter('http.connect.downstream_rq_2xx'), 1);
    }));
