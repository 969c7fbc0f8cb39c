// privacypass-ts's issuer of tokens of type 2 behind Node's web server, a gateway for an issuer, and our issuer with a gateway.

import { MediaType, PRIVATE_TOKEN_ISSUER_DIRECTORY, publicVerif } from '@cloudflare/privacypass-ts';
import { once } from 'node:events';
import http from 'node:http';
import { join } from 'node:path';
import { daemon } from './postern.js';

const { BlindRSAMode, Issuer, getPublicKeyBytes } = publicVerif;

/** An issuer with a new key; `answer` makes the response of one request, of the content type `responseType`. */
export async function foreignIssuer(responseType, answer) {
    const size = { modulusLength: 2048, publicExponent: Uint8Array.from([1, 0, 1]) };
    const pair = await Issuer.generateKey(BlindRSAMode.PSS, size);
    const issuer = new Issuer(BlindRSAMode.PSS, 'issuer.example', pair.privateKey, pair.publicKey);
    const key = await getPublicKeyBytes(pair.publicKey);
    const directory = {
        'issuer-request-uri': '/issue',
        'token-keys': [{ 'token-type': 2, 'token-key': Buffer.from(key).toString('base64url') }],
    };
    const requests = [];
    const server = http.createServer(async (request, response) => {
        if (request.method === 'GET') {
            response.setHeader('content-type', MediaType.PRIVATE_TOKEN_ISSUER_DIRECTORY);
            return response.end(JSON.stringify(directory));
        }
        const body = [];
        for await (const bytes of request) body.push(bytes);
        requests.push(request.headers['content-type']);
        response.setHeader('content-type', responseType);
        response.end((await answer(issuer, new Uint8Array(Buffer.concat(body)))).serialize());
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const close = () => new Promise((done) => server.close(done));
    const address = `127.0.0.1:${server.address().port}`;
    return { address, key, directory, requests, issue: (request) => issuer.issue(request), close };
}

let gateways = 0;
/** A gateway of the issuer `name` with a store of its own in `folder`; `issuer` is its [issuer]. */
export function gatewayConfig(folder, issuer, { name = 'issuer.example' } = {}) {
    gateways += 1;
    return `
listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
challenge = { issuer_name = "${name}", origin = "proxy.example" }
store = { path = "${join(folder, `spent-${gateways}`)}" }
egress = { private = true, ports = "any" }
[issuer]
${issuer}
`;
}

/** Our issuer of these token types, and a gateway that accepts them. */
export async function issuerAndGateway(folder, types) {
    const keys = join(folder, 'issuer-keys');
    const issuer = await daemon('issuer', join(folder, 'issuer.toml'), `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        keys = { directory = "${keys}", types = [${types}] }
    `);
    const ofIssuer = `
        directory = "http://${issuer.address}${PRIVATE_TOKEN_ISSUER_DIRECTORY}"
        types = [${types}]
        secrets = "${keys}"
    `;
    const gateway = await daemon('gateway', join(folder, 'gateway.toml'), gatewayConfig(folder, ofIssuer));
    const stop = async () => {
        await gateway.stop();
        await issuer.stop();
    };
    return { issuer: issuer.address, gateway: gateway.address, stop };
}
