// Python through the agent: the standard library's two clients, and requests.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { run } from './postern.js';
import { stage } from './stage.js';

/** Debian's own, which is the one that apt installs modules for. */
const python = process.env.PYTHON ?? (existsSync('/usr/bin/python3') ? '/usr/bin/python3' : 'python3');
const program = join(import.meta.dirname, 'get.py');
const within = { timeout: 60_000 };

let stop, system, ca, secure, plain;
before(async () => {
    ({ stop, system, ca, secure, plain } = await stage());
});
after(() => stop?.());

/** The module that `import` reports as missing; false when all are installed. */
async function missing(...modules) {
    const { code } = await run(python, ['-c', `import ${modules.join(', ')}`]);
    return code !== 0 && `${python} has no ${modules.join(' and ')}`;
}

async function gets(client, site) {
    const { opened } = await system.metrics();
    const result = await run(python, [program, client, system.agent, ca, site.url]);
    assert.equal(result.code, 0, result.stderr);
    assert.ok(result.stdout.includes(site.text), result.stdout);
    assert.equal((await system.metrics()).opened - opened, 1, 'it must have gone through the gateway');
}

test('http.client with set_tunnel', within, () => gets('http.client', secure));
test('urllib, https', within, () => gets('urllib', secure));
test('urllib, plain http', within, () => gets('urllib', plain));

const noRequests = await missing('requests');
test('requests, https', { ...within, skip: noRequests }, () => gets('requests', secure));
test('requests, plain http', { ...within, skip: noRequests }, () => gets('requests', plain));
test('requests over SOCKS5', { ...within, skip: await missing('requests', 'socks') }, () => gets('requests-socks', secure));
