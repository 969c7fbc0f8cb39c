// A relay in front of issuer or gateway that keeps what clients send: HTTP/1.1, because it offers no other protocol.

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import net from 'node:net';
import tls from 'node:tls';

/** Relays connections to `address`, over TLS on both sides if there is a certificate. */
export async function recordingRelay(address, certificate) {
    const [host, port] = address.split(':');
    const [received, sockets] = [[], []];
    const relay = (client) => {
        const server = certificate ? tls.connect({ host, port, rejectUnauthorized: false }) : net.connect({ host, port });
        const connection = received.push('') - 1;
        client.on('data', (bytes) => (received[connection] += bytes.toString('latin1')));
        client.pipe(server).pipe(client);
        sockets.push(client, server);
        for (const socket of [client, server]) {
            socket.on('error', () => {}).on('close', () => [client, server].forEach((side) => side.destroy()));
        }
    };
    const read = async () => ({ cert: await readFile(certificate.cert), key: await readFile(certificate.key) });
    const listener = certificate ? tls.createServer(await read(), relay) : net.createServer(relay);
    await once(listener.listen(0, '127.0.0.1'), 'listening');
    const close = () => {
        sockets.forEach((socket) => socket.destroy());
        return new Promise((done) => listener.close(done));
    };
    /** The heads of all requests that begin with `start`. */
    const heads = (start) => received.flatMap((text) => text.split(start).slice(1).map((rest) => start + rest.split('\r\n\r\n')[0]));
    return { port: listener.address().port, heads, close };
}
