// HTTP/3 by quic-go through the agent's UDP ASSOCIATE: to a server of its own, and to aioquic.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { page3, skip as noServer } from './http3.js';
import { environment, run } from './postern.js';
import { stage } from './stage.js';

const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
const skip = go ? false : 'there is no Go';
const within = { timeout: 60_000, skip };
// Fetching and compiling the library for the first time takes a while on a busy machine.
const compiling = { timeout: 300_000 };
const env = { ...environment, QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING: 'true' };

let stop, scratch, system, ca, quicgo, files;
before(async () => {
    if (!go) return;
    ({ stop, scratch, system, ca } = await stage());
    quicgo = join(scratch.path, 'quicgo');
    const cwd = join(import.meta.dirname, 'quicgo');
    const built = await run(go, ['build', '-o', quicgo, '.'], { env: environment, cwd, ...compiling });
    assert.equal(built.code, 0, built.stderr);
    files = { certificate: join(scratch.path, 'cert.pem'), key: join(scratch.path, 'key.pem') };
}, compiling);
after(() => stop?.());

/** Fetches a page through the agent, which must open one tunnel. */
async function page(url) {
    const before = await system.metrics();
    const result = await run(quicgo, ['get', system.agent, ca, url], { env });
    assert.equal(result.code, 0, result.stderr);
    assert.equal((await system.metrics()).opened - before.opened, 1);
    return result.stdout;
}

test('a page and one of 8 MiB by quic-go, each for one token', within, async () => {
    const server = spawn(quicgo, ['serve', files.certificate, files.key], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    try {
        const [port] = await once(createInterface(server.stdout), 'line');
        for (const size of [5, 8 << 20]) {
            assert.equal((await page(`https://127.0.0.1:${port}/${size}`)).length, size);
        }
    } finally {
        server.kill();
    }
});

test('a page of aioquic by quic-go for one token', { ...within, skip: skip || noServer }, async () => {
    const server = await page3('a page over HTTP/3', files);
    try {
        assert.equal(await page(server.url), 'a page over HTTP/3');
    } finally {
        server.stop();
    }
});
