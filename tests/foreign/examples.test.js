// The example programs that `docs/clients.md` shows, each run as a reader would run it.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { clients, page3, skip as noHttp3 } from './http3.js';
import { environment, mint, run } from './postern.js';
import { stage } from './stage.js';

const examples = join(import.meta.dirname, 'examples');
const python = process.env.PYTHON ?? (existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3');
const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
// Compiling Go's net/http for the first time takes a while on a busy machine.
const within = { timeout: 300_000 };
const withGo = { ...within, skip: go ? false : 'there is no Go' };
const tried = new Set();

let stop, scratch, system, ca, secure;
before(async () => {
    ({ stop, scratch, system, ca, secure } = await stage());
});
after(() => stop?.());

/** The program prints the page, and exactly one tunnel of the gateway was opened for it. */
async function fetches(name, program, args, options = {}) {
    tried.add(name);
    const { opened } = await system.metrics();
    // What each of them reads to learn of an authority: the examples need no option for it.
    const env = { ...environment, SSL_CERT_FILE: ca, REQUESTS_CA_BUNDLE: ca, NODE_EXTRA_CA_CERTS: ca };
    const result = await run(program, args, { env, timeout: within.timeout, ...options });
    assert.equal(result.code, 0, result.stderr);
    assert.ok(result.stdout.includes(secure.text), result.stdout);
    assert.equal((await system.metrics()).opened - opened, 1, 'it must have gone through the gateway');
}

function example(name, interpreter, ...args) {
    return fetches(name, interpreter[0], [...interpreter.slice(1), join(examples, name), ...args]);
}

const runGo = [go, 'run'];
for (const scheme of ['http', 'socks5']) {
    test(`agent.go, ${scheme}`, withGo, () => example('agent.go', runGo, `${scheme}://${system.agent}`, secure.url));
}

test('token.go', withGo, async () => {
    const tokens = join(scratch.path, 'tokens');
    await writeFile(tokens, `${(await mint({ ...system, count: 2 })).join('\n')}\n`);
    const shell = ['-c', '"$0" run "$1" "$2" "$3" < "$4"'];
    const args = [go, join(examples, 'token.go'), `http://${system.gateway}`, secure.url, tokens];
    await fetches('token.go', 'sh', [...shell, ...args]);
});


const lacks = (...modules) =>
    spawnSync(python, ['-c', `import ${modules.join(', ')}`]).status !== 0 && `${python} has no ${modules.join(' and ')}`;
for (const [scheme, ...modules] of [['http', 'requests'], ['socks5h', 'requests', 'socks']]) {
    test(`agent_requests.py, ${scheme}`, { ...within, skip: lacks(...modules) }, () =>
        example('agent_requests.py', [python], `${scheme}://${system.agent}`, secure.url));
}

test('http3.py', { ...within, skip: noHttp3 }, async () => {
    const files = { certificate: join(scratch.path, 'cert.pem'), key: join(scratch.path, 'key.pem') };
    const server = await page3(secure.text, files);
    try {
        await example('http3.py', [clients], `http://${system.agent}`, server.url);
    } finally {
        server.stop();
    }
});

test('agent.mjs', within, () => example('agent.mjs', [process.execPath], `http://${system.agent}`, secure.url));

test('mint.mjs', within, () =>
    example('mint.mjs', [process.execPath], `http://${system.gateway}`, `http://${system.issuer}`, secure.url));

test('curl with a token', within, async () => {
    const [token] = await mint(system);
    const args = ['--silent', '--show-error', '--cacert', ca, '--proxytunnel', '-x', `http://${system.gateway}`];
    await fetches('curl', 'curl', [...args, '--proxy-header', `Proxy-Authorization: ${token}`, secure.url]);
});

test('git by its setting', within, async () => {
    // Not a repository: git must have requested one through the proxy, and must report that there is none.
    const { opened } = await system.metrics();
    const args = ['-c', `http.proxy=http://${system.agent}`, '-c', `http.sslCAInfo=${ca}`, 'ls-remote', secure.url];
    const result = await run('git', args, { env: environment });
    assert.equal(result.code, 128, result.stderr);
    assert.equal((await system.metrics()).opened - opened, 1, 'it must have gone through the gateway');
});

test('every example was run, or has a test that was skipped', within, async () => {
    tried.add('dns_socks.py'); // in socks_udp.test.js
    const missing = (await readdir(examples)).filter((name) => !tried.has(name));
    const isExcused = { 'agent_requests.py': lacks('requests'), 'http3.py': noHttp3 };
    const excused = missing.filter((name) => name.endsWith('.go') && !go || isExcused[name]);
    assert.deepEqual(missing, excused);
});
