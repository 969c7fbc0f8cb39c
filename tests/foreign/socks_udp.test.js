// DNS through the agent's UDP ASSOCIATE: PySocks and dnspython, to a server of this test.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { folder, run, up } from './postern.js';

const python = process.env.POSTERN_PYTHON_CLIENTS;
const hasClients = python && spawnSync(python, ['-c', 'import dns, socks']).status === 0;
const skip = hasClients ? false : 'there is no dnspython or PySocks: scripts/tools/python-clients installs them';
const program = join(import.meta.dirname, 'examples/dns_socks.py');
const within = { timeout: 60_000, skip };

let scratch, system;
const servers = [];
before(async () => {
    if (skip) return;
    scratch = await folder();
    system = await up(join(scratch.path, 'up'));
});
after(async () => {
    servers.forEach((server) => server.close());
    await system?.stop();
    await scratch?.remove();
});

/** Starts a server that answers every question with this address; returns its port. */
async function nameServer(address) {
    const socket = createSocket('udp4').bind(0, '127.0.0.1');
    servers.push(socket);
    // The name of the question, type A, class IN, a minute, four bytes (RFC 1035, section 4.1.3).
    const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address.split('.').map(Number)]);
    socket.on('message', (query, { address, port }) => {
        const question = query.subarray(12, query.indexOf(0, 12) + 5);
        const header = Buffer.from([query[0], query[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        socket.send(Buffer.concat([header, question, record]), port, address);
    });
    await once(socket, 'listening');
    return socket.address().port;
}

for (const host of ['127.0.0.1', 'localhost']) {
    test(`questions to a server at ${host}, which cost one token`, within, async () => {
        const port = await nameServer('192.0.2.7');
        const { opened } = await system.metrics();
        const args = [program, system.agent, `${host}:${port}`, ...Array(5).fill('a.example')];
        const result = await run(python, args);
        assert.equal(result.code, 0, result.stderr);
        assert.equal(result.stdout, '192.0.2.7\n'.repeat(5));
        assert.equal((await system.metrics()).opened - opened, 1);
    });
}
