// circl, Cloudflare's library in Go: as a client (RFC 9577, RFC 9578), for challenges with a mark.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { opensOneTunnel } from './connect.js';
import { environment, folder, run, up } from './postern.js';
import { echo } from './targets.js';

const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
// Fetching and compiling the library for the first time takes a while on a busy machine.
const within = { timeout: 300_000, skip: go ? false : 'there is no Go' };

let scratch, system, target;
before(async () => {
    scratch = await folder();
    system = await up(join(scratch.path, 'up'));
    target = await echo();
});
after(async () => {
    await system?.stop();
    await target?.close();
    await scratch?.remove();
});

test('its token opens one tunnel', within, async () => {
    const args = ['run', '.', `http://${system.gateway}`, `http://${system.issuer}`];
    const cwd = join(import.meta.dirname, 'circl');
    const minted = await run(go, args, { env: environment, cwd, timeout: within.timeout });
    assert.equal(minted.code, 0, minted.stderr);
    await opensOneTunnel(system.gateway, target.port, minted.stdout.trim());
});
