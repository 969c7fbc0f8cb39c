// Proxies of other authors, as processes on free ports of loopback.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import { environment } from './postern.js';

const given = new Set();

/**
 * A port on which nothing listens, each once, below those that the kernel gives to connections (as in
 * crates/testkit/src/ports.rs).
 */
export async function free() {
    for (;;) {
        const port = 20_000 + Math.floor(Math.random() * 12_768);
        const server = net.createServer().listen(port, '127.0.0.1');
        const isFree = await once(server, 'listening').then(() => true, () => false);
        if (!isFree) continue;
        server.close();
        await once(server, 'close');
        if (given.has(port)) continue;
        given.add(port);
        return port;
    }
}

/** Starts a proxy, which listens on these ports when this returns; the function that ends it. */
export async function proxy(program, args, ports) {
    const child = spawn(program, args, { env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const output of [child.stdout, child.stderr]) output.on('data', (some) => (said += some));
    const exited = once(child, 'exit');
    const stop = async () => {
        child.kill();
        await exited;
    };
    const ended = exited.then(([code]) => Promise.reject(new Error(`${program} ended with ${code}:\n${said}`)));
    try {
        await Promise.race([ended, Promise.all(ports.map(listening))]);
    } catch (error) {
        await stop();
        throw error;
    }
    ended.catch(() => {});
    return stop;
}

async function listening(port) {
    const deadline = Date.now() + 20_000;
    for (;;) {
        const socket = net.connect(port, '127.0.0.1');
        const came = await Promise.race([once(socket, 'connect').then(() => true), once(socket, 'close').then(() => false)])
            .catch(() => false);
        socket.destroy();
        if (came) return;
        if (Date.now() > deadline) throw new Error(`nothing listens on ${port}`);
        await new Promise((done) => setTimeout(done, 20));
    }
}
