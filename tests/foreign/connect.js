// CONNECT as Node's own HTTP client sends it, and what a token does there.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';

/** Requests a tunnel to `port` on loopback from `proxy` ("host:port"): status, headers, and a socket or a body. */
export async function connect(proxy, port, authorization) {
    const [host, proxyPort] = proxy.split(':');
    const headers = authorization ? { 'proxy-authorization': authorization } : {};
    const path = `127.0.0.1:${port}`;
    const request = http.request({ host, port: proxyPort, method: 'CONNECT', path, headers });
    const [response, socket, head] = await once(request.end(), 'connect');
    const { statusCode: status } = response;
    if (status === 200) {
        if (head.length > 0) socket.unshift(head);
        return { status, headers: response.headers, socket };
    }
    const body = [head];
    let missing = Number(response.headers['content-length'] ?? 0) - head.length;
    while (missing > 0) {
        const [bytes] = await once(socket, 'data');
        body.push(bytes);
        missing -= bytes.length;
    }
    socket.destroy();
    return { status, headers: response.headers, body: Buffer.concat(body).toString() };
}

/** Sends `bytes` through a tunnel to an echo, ends its side, and returns everything that came back. */
export async function echoed(socket, bytes) {
    const received = [];
    socket.on('data', (some) => received.push(some));
    socket.end(bytes);
    await once(socket, 'end');
    return Buffer.concat(received);
}

/** The value opens a tunnel that carries bytes both ways; presented again, it is refused as spent. Returns the refusal. */
export async function opensOneTunnel(proxy, port, authorization) {
    const opened = await connect(proxy, port, authorization);
    assert.equal(opened.status, 200, opened.body);
    const bytes = randomBytes(100_000);
    assert.deepEqual(await echoed(opened.socket, bytes), bytes);

    const replayed = await connect(proxy, port, authorization);
    assert.equal(replayed.status, 407);
    assert.match(replayed.headers['proxy-status'], /details="token already spent"/);
    return replayed;
}
