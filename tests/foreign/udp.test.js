// HTTP/3 through the gateway: libcurl by CONNECT-UDP, over HTTP/1.1 and HTTP/2, to aioquic.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { daemon, environment, mint, run } from './postern.js';
import { stage } from './stage.js';

const python = process.env.POSTERN_PYTHON_CLIENTS;
const hasQuic = python && spawnSync(python, ['-c', 'import aioquic']).status === 0;
const within = { timeout: 60_000, skip: hasQuic ? false : 'there is no aioquic: scripts/tools/python-clients installs it' };
const text = 'a page over HTTP/3';

let stop, scratch, system, ca, gateway, server, url;
before(async () => {
    if (within.skip) return;
    ({ stop, scratch, system, ca } = await stage());
    const [cert, key] = ['cert.pem', 'key.pem'].map((name) => join(scratch.path, name));
    const { address, ...running } = await daemon('gateway', join(scratch.path, 'udp.toml'), `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        tls = { certificate = "${cert}", key = "${key}" }
        issuer = { directory = "http://${system.issuer}/.well-known/private-token-issuer-directory" }
        challenge = { issuer_name = "issuer.example", origin = "localhost" }
        store = { path = "${join(scratch.path, 'spent-udp')}" }
        egress = { private = true, udp = "any" }
    `);
    gateway = { ...running, address: address.replace('127.0.0.1', 'localhost') };
    const program = join(import.meta.dirname, 'http3_page.py');
    server = spawn(python, [program, cert, key, text], { env: environment, stdio: ['ignore', 'pipe', 'inherit'] });
    const [port] = await once(createInterface(server.stdout), 'line');
    url = `https://127.0.0.1:${port}/`;
});
after(async () => {
    server?.kill();
    await gateway?.stop();
    await stop?.();
});

/** Fetches the page with this token; the gateway must open as many tunnels as `count`. */
async function page(version, authorization, count) {
    const before = await gateway.metrics();
    const program = join(import.meta.dirname, 'http3_by_proxy.py');
    const args = [python, program, version, gateway.address, ca, url];
    const result = await run('sh', ['-c', 'printf "%s\\n" "$0" | "$@"', authorization, ...args]);
    const { opened } = await gateway.metrics();
    assert.equal(opened - before.opened, count, result.stderr);
    return result;
}

for (const version of ['h1', 'h2']) {
    test(`a page by libcurl, ${version} to the gateway, for one token`, within, async () => {
        const [authorization] = await mint({ issuer: system.issuer, gateway: gateway.address, count: 1, ca });
        const result = await page(version, authorization, 1);
        assert.equal(result.code, 0, result.stderr);
        assert.ok(result.stdout.includes(text), result.stdout);
        const replay = await page(version, authorization, 0);
        assert.notEqual(replay.code, 0);
        assert.match(replay.stderr, /407/);
    });
}
