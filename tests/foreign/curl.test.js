// curl: through the agent in every way it can use a proxy, and directly against the gateway.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { mint, run } from './postern.js';
import { stage } from './stage.js';
import { echo } from './targets.js';

const within = { timeout: 60_000 };

let stop, scratch, system, ca, secure, plain;
before(async () => {
    ({ stop, scratch, system, ca, secure, plain } = await stage());
});
after(() => stop?.());

function curl(...args) {
    return run('curl', ['--silent', '--show-error', '--max-time', '40', '--cacert', ca, ...args]);
}

/** Runs `act`; exactly `count` tunnels or requests must have gone through the gateway meanwhile. */
async function costs(count, act) {
    const { opened } = await system.metrics();
    const result = await act();
    assert.equal((await system.metrics()).opened - opened, count, result.stderr);
    return result;
}

for (const proxy of ['http', 'socks5h', 'socks5']) {
    test(`an https page through the agent as ${proxy}:// proxy`, within, async () => {
        const result = await costs(1, () => curl('-x', `${proxy}://${system.agent}`, secure.url));
        assert.equal(result.code, 0, result.stderr);
        assert.match(result.stdout, /a page over TLS/);
    });
}

test('two requests over one tunnel cost one token', within, async () => {
    const result = await costs(1, () => curl('-x', `http://${system.agent}`, secure.url, secure.url));
    assert.equal(result.stdout.match(/a page over TLS/g)?.length, 2, result.stderr);
});

test('a plain http page through the agent', within, async () => {
    const result = await costs(1, () => curl('-x', `http://${system.agent}`, plain.url));
    assert.match(result.stdout, /a page without TLS/, result.stderr);
    assert.equal(plain.seen.headers['proxy-authorization'], undefined);
});

test('8 MiB up and down through the agent arrive unchanged', within, async () => {
    const [sent, received] = [join(scratch.path, 'sent'), join(scratch.path, 'received')];
    await writeFile(sent, randomBytes(8 << 20));
    const upload = ['--data-binary', `@${sent}`, '--output', received, '-H', 'Expect:'];
    const result = await costs(1, () => curl('-x', `http://${system.agent}`, ...upload, secure.url));
    assert.equal(result.code, 0, result.stderr);
    assert.ok((await readFile(sent)).equals(await readFile(received)));
});

test('the gateway itself takes a token once', within, async () => {
    const [authorization] = await mint(system);
    const direct = () =>
        curl('--include', '--proxytunnel', '-x', `http://${system.gateway}`, '--proxy-header',
            `Proxy-Authorization: ${authorization}`, secure.url);
    const accepted = await costs(1, direct);
    assert.equal(accepted.code, 0, accepted.stderr);
    assert.match(accepted.stdout, /a page over TLS/);

    const replayed = await costs(0, direct);
    assert.equal(replayed.code, 56, 'CURLE_RECV_ERROR is what curl makes of a refused CONNECT');
    assert.match(replayed.stderr, /response 407/);
    assert.match(replayed.stdout, /^proxy-status: .*details="token already spent"/m);
    assert.match(replayed.stdout, /^proxy-authenticate: PrivateToken challenge="/m);
});

test('the gateway forwards plain http for a token, and keeps the token to itself', within, async () => {
    const [authorization] = await mint(system);
    const direct = () =>
        curl('--include', '-x', `http://${system.gateway}`, '--proxy-header',
            `Proxy-Authorization: ${authorization}`, plain.url);
    const accepted = await costs(1, direct);
    assert.match(accepted.stdout, /a page without TLS/, accepted.stderr);
    assert.equal(plain.seen.headers['proxy-authorization'], undefined);

    const replayed = await costs(0, direct);
    assert.match(replayed.stdout, /^HTTP\/1.1 407 /);
    assert.match(replayed.stdout, /token already spent/i);
});

test('a target that refuses is the gateway’s 502, which curl reports', within, async () => {
    const closed = await echo();
    await closed.close();
    const result = await curl('--include', '-x', `http://${system.agent}`, `https://127.0.0.1:${closed.port}/`);
    assert.equal(result.code, 56, result.stderr);
    assert.match(result.stderr, /response 502/);
    assert.match(result.stdout, /^proxy-status: .*refused/m);
});
