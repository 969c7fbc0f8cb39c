// privacypass-ts: as client, issuer and origin (RFC 9577, RFC 9578).

import {
    AuthorizationHeader,
    MediaType,
    PRIVATE_TOKEN_ISSUER_DIRECTORY,
    TOKEN_TYPES,
    WWWAuthenticateHeader,
    publicVerif,
    sendTokenRequest,
    util,
} from '@cloudflare/privacypass-ts';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import http2 from 'node:http2';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { connect, opensOneTunnel } from './connect.js';
import { foreignIssuer, gatewayConfig } from './issuers.js';
import { daemon, environment, folder, mint, run, up } from './postern.js';
import { certificate, echo } from './targets.js';

const { BlindRSAMode, Client, Origin, TokenRequest } = publicVerif;
const within = { timeout: 60_000 };

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

test('its client gets a token from our issuer, and the token opens one tunnel', within, async () => {
    const challenge = await challengeOf(system.gateway);
    const directory = await directoryOf(system.issuer);
    assert.equal(directory['token-keys'][0]['token-type'], TOKEN_TYPES.BLIND_RSA.value);
    assert.deepEqual(Buffer.from(directory['token-keys'][0]['token-key'], 'base64url'), Buffer.from(challenge.tokenKey));

    // Our own name, and the mark of the gateway's store.
    const [origin, mark, ...others] = challenge.challenge.originInfo;
    assert.match(mark, new RegExp(`^m-[a-z2-7]{26}[.]${origin}$`));
    assert.deepEqual(others, []);

    const client = new Client(BlindRSAMode.PSS);
    const request = await client.createTokenRequest(challenge.challenge, challenge.tokenKey);
    const url = new URL(directory['issuer-request-uri'], `http://${system.issuer}`);
    const response = client.deserializeTokenResponse(await sendTokenRequest(request.serialize(), url));
    const authorization = new AuthorizationHeader(await client.finalize(response)).toString();

    await isSpentOnce(system.gateway, authorization);
});

test('its token is accepted with its value quoted, too', within, async () => {
    const token = await issued(await challengeOf(system.gateway), async (request) => {
        const url = `http://${system.issuer}/token-request`;
        return sendTokenRequest(request.serialize(), url);
    });
    await isSpentOnce(system.gateway, new AuthorizationHeader(token).toString(true));
});

test('its tokens are issued over HTTP/2 on one connection, too', within, async () => {
    const session = http2.connect(`http://${system.issuer}`);
    const post = async (request) => {
        const head = { ':method': 'POST', ':path': '/token-request', 'content-type': MediaType.PRIVATE_TOKEN_REQUEST };
        const stream = session.request(head);
        stream.end(request.serialize());
        const [headers] = await once(stream, 'response');
        assert.equal(headers[':status'], 200);
        const body = Buffer.concat(await stream.toArray());
        assert.equal(headers['content-length'], String(body.length));
        return body;
    };
    const challenge = await challengeOf(system.gateway);
    const tokens = await Promise.all(Array.from({ length: 8 }, () => issued(challenge, post)));
    session.close();
    await isSpentOnce(system.gateway, new AuthorizationHeader(tokens[7]).toString());
});

test('its origin verifies our token, and not a changed one', within, async () => {
    const challenge = await challengeOf(system.gateway);
    const [authorization] = await mint(system);
    const [{ token }] = AuthorizationHeader.parse(TOKEN_TYPES.BLIND_RSA, authorization);
    const digest = createHash('sha256').update(challenge.challenge.serialize()).digest();
    assert.deepEqual(Buffer.from(token.authInput.challengeDigest), digest);

    const origin = new Origin(BlindRSAMode.PSS, challenge.challenge.originInfo);
    const key = await verifyingKey(challenge.tokenKey);
    assert.equal(await origin.verify(token, key), true);
    token.authInput.nonce[0] ^= 1;
    assert.equal(await origin.verify(token, key), false);
});

test('its issuer serves our client, and a gateway with its key accepts the tokens of both', within, async () => {
    const issuer = await foreignIssuer(MediaType.PRIVATE_TOKEN_RESPONSE, (issuer, body) =>
        issuer.issue(TokenRequest.deserialize(TOKEN_TYPES.BLIND_RSA, body)),
    );
    const keys = join(scratch.path, 'directory.json');
    await writeFile(keys, JSON.stringify(issuer.directory));
    const gateway = await daemon('gateway', join(scratch.path, 'gateway.toml'), gatewayConfig(scratch.path, `keys = "${keys}"`));
    try {
        const challenge = await challengeOf(gateway.address);
        assert.deepEqual(Buffer.from(challenge.tokenKey), Buffer.from(issuer.key));
        const token = await issued(challenge, async (request) => (await issuer.issue(request)).serialize());
        await isSpentOnce(gateway.address, new AuthorizationHeader(token).toString());

        const [authorization] = await mint({ issuer: issuer.address, gateway: gateway.address });
        await isSpentOnce(gateway.address, authorization);

        const [stranger] = await mint(system);
        const refused = await connect(gateway.address, target.port, stranger);
        assert.equal(refused.status, 407, 'a token of another issuer');
    } finally {
        await gateway.stop();
        await issuer.close();
    }
});

test('its header_to_token, left to itself, finds our issuer by name over TLS', within, async () => {
    const { ca, cert, key } = await certificate(scratch.path);
    const issuer = await daemon('issuer', join(scratch.path, 'issuer.toml'), `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        tls = { certificate = "${cert}", key = "${key}" }
        keys = { directory = "${join(scratch.path, 'issuer-keys')}" }
    `);
    const name = `localhost:${issuer.address.split(':')[1]}`;
    const source = `directory = "https://${name}${PRIVATE_TOKEN_ISSUER_DIRECTORY}"\nca = "${ca}"`;
    const gateway = await daemon('gateway', join(scratch.path, 'named.toml'), gatewayConfig(scratch.path, source, { name }));
    try {
        const { headers } = await connect(gateway.address, target.port);
        // A process of its own: Node reads the authorities to trust at start only.
        const program = join(import.meta.dirname, 'header-to-token.js');
        const env = { ...environment, NODE_EXTRA_CA_CERTS: ca };
        const { stdout, stderr } = await run(process.execPath, [program, headers['proxy-authenticate']], { env });
        assert.match(stdout, /^PrivateToken token=/, stderr);
        await isSpentOnce(gateway.address, stdout.trim());
    } finally {
        await gateway.stop();
        await issuer.stop();
    }
});

/** The challenge in a gateway's 407, read by privacypass-ts. */
async function challengeOf(gateway) {
    const { status, headers } = await connect(gateway, target.port);
    assert.equal(status, 407);
    const challenges = WWWAuthenticateHeader.parse(headers['proxy-authenticate']);
    assert.equal(challenges.length, 1);
    assert.equal(challenges[0].challenge.tokenType, TOKEN_TYPES.BLIND_RSA.value);
    assert.ok(challenges[0].maxAge > 0);
    return challenges[0];
}

async function directoryOf(issuer) {
    const response = await fetch(`http://${issuer}${PRIVATE_TOKEN_ISSUER_DIRECTORY}`);
    assert.equal(response.headers.get('content-type'), MediaType.PRIVATE_TOKEN_ISSUER_DIRECTORY);
    return response.json();
}

/** A token for `challenge`, from whatever turns a request into the bytes of a response. */
async function issued(challenge, issue) {
    const client = new Client(BlindRSAMode.PSS);
    const request = await client.createTokenRequest(challenge.challenge, challenge.tokenKey);
    return client.finalize(client.deserializeTokenResponse(await issue(request)));
}

/** It opens one tunnel, and the refusal that follows is a challenge for privacypass-ts. */
async function isSpentOnce(gateway, authorization) {
    const refused = await opensOneTunnel(gateway, target.port, authorization);
    assert.equal(WWWAuthenticateHeader.parse(refused.headers['proxy-authenticate']).length, 1);
}

/** WebCrypto imports no key with the id-RSASSA-PSS OID, so privacypass-ts rewrites it. */
function verifyingKey(spki) {
    const algorithm = TOKEN_TYPES.BLIND_RSA.rsaParams;
    return crypto.subtle.importKey('spki', util.convertRSASSAPSSToEnc(spki), algorithm, true, ['verify']);
}
