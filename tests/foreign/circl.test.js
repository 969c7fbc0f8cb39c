// circl, Cloudflare's library in Go: as client and issuer of the private types and of type 2, with both kinds of batches
// (RFC 9578, draft-ietf-privacypass-batched-tokens), for challenges with a mark.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { opensOneTunnel } from './connect.js';
import { gatewayConfig, issuerAndGateway } from './issuers.js';
import { daemon, environment, folder, mint, run } from './postern.js';
import { free, proxy } from './proxies.js';
import { echo } from './targets.js';

const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
const within = { timeout: 60_000, skip: go ? false : 'there is no Go' };
// Fetching and compiling the library for the first time takes a while on a busy machine.
const compiling = { timeout: 300_000 };

let scratch, circl, system, target;
before(async () => {
    if (!go) return;
    scratch = await folder();
    circl = join(scratch.path, 'circl');
    const cwd = join(import.meta.dirname, 'circl');
    const built = await run(go, ['build', '-o', circl, '.'], { env: environment, cwd, ...compiling });
    assert.equal(built.code, 0, built.stderr);
    system = await issuerAndGateway(scratch.path, [5, 1, 2], 'offer');
    target = await echo();
}, compiling);
after(async () => {
    await system?.stop();
    await target?.close();
    await scratch?.remove();
});

for (const [way, types] of [
    ['singly', [1, 2, 5]],
    ['amortized', [1, 1, 1]],
    ['amortized', [5, 5, 5, 5, 5]],
    ['generic', [1, 2, 5, 2, 1]],
]) {
    test(`its client gets tokens of types ${types}, ${way}, and each opens one tunnel`, within, async () => {
        const { code, stdout, stderr } = await run(circl, [way, system.gateway, system.issuer, ...types]);
        assert.equal(code, 0, stderr);
        const tokens = stdout.trimEnd().split('\n');
        assert.deepEqual(tokens.map(typeOf), types);
        for (const authorization of tokens) await opensOneTunnel(system.gateway, target.port, authorization);
    });
}

for (const type of [1, 5]) {
    test(`its issuer serves our client an amortized batch of type ${type}`, within, async () => {
        const secrets = join(scratch.path, `secrets-${type}`);
        await mkdir(secrets);
        const port = await free();
        const issuer = `127.0.0.1:${port}`;
        const stop = await proxy(circl, ['issuer', issuer, secrets, type], [port]);
        const config = gatewayConfig(scratch.path, `
            directory = "http://${issuer}/.well-known/private-token-issuer-directory"
            types = [${type}]
            secrets = "${secrets}"
        `);
        const gateway = await daemon('gateway', join(scratch.path, `foreign-${type}.toml`), config);
        try {
            const tokens = await mint({ issuer, gateway: gateway.address, count: 5 });
            assert.deepEqual(tokens.map(typeOf), Array(5).fill(type));
            const requests = await (await fetch(`http://${issuer}/requests`)).json();
            assert.deepEqual(requests, ['application/private-token-amortized-batch-request']);
            for (const authorization of tokens) await opensOneTunnel(gateway.address, target.port, authorization);
        } finally {
            await gateway.stop();
            await stop();
        }
    });
}

/** The type of the token in a value of Proxy-Authorization: the first two bytes. */
function typeOf(authorization) {
    const [, token] = /^PrivateToken token="?([\w=-]+)"?$/.exec(authorization);
    return Buffer.from(token, 'base64url').readUInt16BE();
}
