// The gateway as https:// proxy of HTTP/2 clients by other authors: libcurl, Python's h2, Go, undici, nghttpx, Chromium.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Client } from 'undici';
import { browser, missing as noChromium } from './browser.js';
import { echoed } from './connect.js';
import { mint, run } from './postern.js';
import { free, proxy } from './proxies.js';
import { secureGateway, stage } from './stage.js';
import { echo } from './targets.js';

const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
const python = process.env.POSTERN_PYTHON_CLIENTS;
const nghttpx = ['nghttpx', '/usr/sbin/nghttpx'].find((name) => spawnSync(name, ['--version']).status === 0);
const within = { timeout: 60_000 };
// Compiling Go's net/http for the first time takes a while on a busy machine.
const compiled = { timeout: 300_000, skip: go ? false : 'there is no Go' };
const withPython = { ...within, skip: python ? false : 'POSTERN_PYTHON_CLIENTS names no Python: scripts/tools/python-clients' };

let stop, scratch, system, ca, secure, gateway, target;
before(async () => {
    ({ stop, scratch, system, ca, secure } = await stage());
    target = await echo();
    gateway = await secureGateway({ scratch, system }, 'tls', 'egress = { private = true, ports = "any" }');
});
after(async () => {
    await gateway?.stop();
    await target?.close();
    await stop?.();
});

/** Runs `act` with tokens; exactly as many tunnels must have been opened by the gateway. */
async function costs(count, act) {
    const before = await gateway.metrics();
    const authorizations = count && (await mint({ issuer: system.issuer, gateway: gateway.address, count, ca }));
    const result = await act(authorizations);
    const { opened } = await gateway.metrics();
    assert.equal(opened - before.opened, count, result?.stderr);
    return result;
}

/** Runs a program with tokens on its standard input. */
function fed(program, args, authorizations, options) {
    return run('sh', ['-c', 'printf "%s\\n" "$0" | "$@"', authorizations.join('\n'), program, ...args], options);
}

for (const client of ['libcurl', 'h2']) {
    test(`a page by Python, ${client}`, withPython, async () => {
        const program = join(import.meta.dirname, 'https_proxy.py');
        const args = [program, client, gateway.address, ca, secure.url];
        const result = await costs(1, (authorizations) => fed(python, args, authorizations));
        assert.equal(result.code, 0, result.stderr);
        assert.ok(result.stdout.includes(secure.text), result.stdout);
    });
}

test('ten pages at once by Go', compiled, async () => {
    const program = join(import.meta.dirname, 'h2connect', 'main.go');
    const args = ['run', program, gateway.address, ca, secure.url, '10'];
    const options = { timeout: compiled.timeout };
    const result = await costs(10, (authorizations) => fed(go, args, authorizations, options));
    assert.equal(result.code, 0, result.stderr);
    assert.equal(result.stdout.split(secure.text).length - 1, 10, result.stdout);
});

test('tunnels by undici, on one connection', within, async () => {
    const client = new Client(`https://${gateway.address}`, { allowH2: true, connect: { ca: await readFile(ca) } });
    const path = `127.0.0.1:${target.port}`;
    await costs(4, (authorizations) => Promise.all(authorizations.map(async (authorization) => {
        const headers = { host: path, 'proxy-authorization': authorization };
        const { socket } = await client.connect({ path, headers }); // before there is a status
        const bytes = randomBytes(1 << 20);
        assert.ok((await echoed(socket, bytes)).equals(bytes));
    })));
    await client.destroy();
});

test('nghttpx passes tunnels on', { ...within, skip: nghttpx ? false : 'there is no nghttpx' }, async () => {
    const port = await free();
    const backend = `${gateway.address.replace(':', ',')};;proto=h2;tls;sni=localhost`;
    const args = ['-s', '-f', `127.0.0.1,${port};no-tls`, '-b', backend, '--cacert', ca, '-n', '1'];
    const stopProxy = await proxy(nghttpx, args, [port]);
    try {
        const page = (authorization) => run('curl', [
            ...['--silent', '--show-error', '--max-time', '40', '--cacert', ca, '-x', `http://127.0.0.1:${port}`],
            ...['--proxy-header', `Proxy-Authorization: ${authorization}`, secure.url],
        ]);
        const results = await costs(6, (authorizations) => Promise.all(authorizations.map(page)));
        for (const { stdout, stderr } of results) assert.ok(stdout.includes(secure.text), stderr);
        const refused = await costs(0, () => page('PrivateToken token="none"'));
        assert.match(refused.stderr, /response 407/);
    } finally {
        await stopProxy();
    }
});

// It has no token to present.
test('Chromium is refused', { timeout: 100_000, skip: noChromium }, async () => {
    const outcome = 'postern_requests_total{outcome="no_token"}';
    const [refused, reached] = [(await gateway.metrics()).value(outcome), secure.connections()];
    const proxied = [`--proxy-server=https://${gateway.address}`, '--proxy-bypass-list=<-loopback>'];
    const chromium = await browser([...proxied, '--ignore-certificate-errors']);
    try {
        const page = await chromium.newPage();
        await assert.rejects(page.goto(secure.url), /ERR_/);
    } finally {
        await chromium.close();
    }
    assert.ok((await gateway.metrics()).value(outcome) > refused, 'it came to the gateway');
    assert.equal(secure.connections(), reached, 'it went past the gateway');
});
