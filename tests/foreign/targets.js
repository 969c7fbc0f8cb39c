// What tunnels lead to: an echo, and web pages over HTTP and HTTPS. All on 127.0.0.1.

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { join } from 'node:path';
import { run } from './postern.js';

/** Sends every byte back. */
export async function echo() {
    return listening(net.createServer((socket) => socket.on('error', () => {}).pipe(socket)));
}

/**
 * A web server, on loopback unless `address` is another of this machine. It answers GET with a page that holds `text`,
 * and POST with the bytes that came. It keeps the headers of the last request, and counts its connections: with a
 * proxy, none may bypass the proxy.
 */
export async function page(text, certificate, address = '127.0.0.1') {
    const seen = {};
    const serve = async (request, response) => {
        seen.headers = request.headers;
        if (request.method === 'POST') {
            request.pipe(response);
        } else {
            response.setHeader('content-type', 'text/html');
            response.end(`<!doctype html><title>page</title><link rel="icon" href="data:,"><p>${text}</p>`);
        }
    };
    const server = certificate
        ? https.createServer({ cert: await readFile(certificate.cert), key: await readFile(certificate.key) }, serve)
        : http.createServer(serve);
    const target = await listening(server, address);
    const host = address === '127.0.0.1' ? 'localhost' : address;
    const scheme = certificate ? 'https' : 'http';
    return { ...target, seen, text, url: `${scheme}://${host}:${target.port}/` };
}

/** A web server whose pages below `close` close their connections, and whose page `close/scripts` has eight scripts. */
export async function scripted({ cert, key }) {
    const scripts = Array.from({ length: 8 }, (_, n) => `<script src="/close/${n}.js"></script>`).join('');
    const server = https.createServer({ cert: await readFile(cert), key: await readFile(key) }, ({ url }, response) => {
        if (url.startsWith('/close')) response.setHeader('connection', 'close');
        response.setHeader('cache-control', 'no-store');
        response.setHeader('content-type', url.endsWith('.js') ? 'text/javascript' : 'text/html');
        const body = url.startsWith('/close/scripts') ? scripts : 'a page';
        response.end(url.endsWith('.js') ? '' : `<!doctype html><link rel="icon" href="data:,">${body}`);
    });
    server.keepAliveTimeout = 600_000;
    const target = await listening(server);
    return { ...target, url: `https://localhost:${target.port}/` };
}

async function listening(server, address = '127.0.0.1') {
    const sockets = new Set();
    const count = { connections: 0 };
    server.on('connection', (socket) => {
        count.connections += 1;
        sockets.add(socket.on('close', () => sockets.delete(socket)));
    });
    await once(server.listen(0, address), 'listening');
    const close = () => {
        sockets.forEach((socket) => socket.destroy());
        return new Promise((done) => server.close(done));
    };
    return { port: server.address().port, connections: () => count.connections, close };
}

/** A certificate for localhost, and the authority that signed it: files in `folder`, good for two days. */
export async function certificate(folder) {
    const file = (name) => join(folder, name);
    const openssl = async (...args) => {
        const common = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
        const { code, stderr } = await run('openssl', [...common, ...args]);
        if (code !== 0) throw new Error(`openssl: ${stderr}`);
    };
    await openssl(
        ...['-subj', '/CN=Authority of one test', '-addext', 'keyUsage=critical,keyCertSign'],
        ...['-out', file('ca.pem'), '-keyout', file('ca.key')],
    );
    await openssl(
        ...['-CA', file('ca.pem'), '-CAkey', file('ca.key'), '-subj', '/CN=localhost'],
        ...['-addext', 'basicConstraints=critical,CA:FALSE'],
        ...['-addext', 'subjectAltName=DNS:localhost,IP:127.0.0.1'],
        ...['-out', file('cert.pem'), '-keyout', file('key.pem')],
    );
    return { ca: file('ca.pem'), cert: file('cert.pem'), key: file('key.pem') };
}
