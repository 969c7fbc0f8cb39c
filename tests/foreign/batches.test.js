// privacypass-ts with tokens of type 1, and with tokens of both its types in one request (RFC 9578,
// draft-ietf-privacypass-batched-tokens).

import {
    AuthorizationHeader,
    MediaType,
    WWWAuthenticateHeader,
    genericBatched,
    privateVerif,
    publicVerif,
    sendTokenRequest,
} from '@cloudflare/privacypass-ts';
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { connect, opensOneTunnel } from './connect.js';
import { foreignIssuer, gatewayConfig, issuerAndGateway } from './issuers.js';
import { daemon, folder, mint } from './postern.js';
import { echo } from './targets.js';

const { BlindRSAMode } = publicVerif;
const GENERIC_REQUEST = MediaType.ARBITRARY_BATCHED_TOKEN_REQUEST;
const GENERIC_RESPONSE = MediaType.ARBITRARY_BATCHED_TOKEN_RESPONSE;
const within = { timeout: 60_000 };

let scratch, system, target;
before(async () => {
    scratch = await folder();
    target = await echo();
    system = await issuerAndGateway(scratch.path, [1, 2]);
});
after(async () => {
    await system?.stop();
    await target?.close();
    await scratch?.remove();
});

test('its client gets a token of type 1 from our issuer, and the token opens one tunnel', within, async () => {
    const [first] = await challenges();
    const client = new privateVerif.Client();
    const request = await client.createTokenRequest(first.challenge, first.tokenKey);
    const bytes = await sendTokenRequest(request.serialize(), `http://${system.issuer}/token-request`);
    const token = await client.finalize(client.deserializeTokenResponse(bytes));
    await opensOneTunnel(system.gateway, target.port, new AuthorizationHeader(token).toString());
});

test('its client gets tokens of both types in one request, and each opens one tunnel', within, async () => {
    const offered = await challenges();
    const makers = [new privateVerif.Client(), new publicVerif.Client(BlindRSAMode.PSS), new privateVerif.Client()];
    const requests = [];
    for (const [index, maker] of makers.entries()) {
        const { challenge, tokenKey } = offered[index % 2];
        requests.push(new genericBatched.TokenRequest(await maker.createTokenRequest(challenge, tokenKey)));
    }
    const batch = new genericBatched.Client();
    const answer = await fetch(`http://${system.issuer}/token-request`, {
        method: 'POST',
        headers: { 'content-type': GENERIC_REQUEST },
        body: batch.createTokenRequest(requests).serialize(),
    });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get('content-type'), GENERIC_RESPONSE);
    const responses = [...batch.deserializeTokenResponse(new Uint8Array(await answer.arrayBuffer()))];
    assert.equal(responses.length, makers.length);
    for (const [index, { tokenResponse }] of responses.entries()) {
        const token = await makers[index].finalize(tokenResponse);
        await opensOneTunnel(system.gateway, target.port, new AuthorizationHeader(token).toString());
    }
});

test('its issuer serves our client a batch', within, async () => {
    const foreign = await foreignIssuer(GENERIC_RESPONSE, (issuer, body) =>
        new genericBatched.Issuer(issuer).issue(genericBatched.BatchedTokenRequest.deserialize(body)),
    );
    const keys = join(scratch.path, 'directory.json');
    await writeFile(keys, JSON.stringify(foreign.directory));
    const ours = await daemon('gateway', join(scratch.path, 'foreign.toml'), gatewayConfig(scratch.path, `keys = "${keys}"`));
    try {
        const tokens = await mint({ issuer: foreign.address, gateway: ours.address, count: 5 });
        assert.deepEqual([tokens.length, foreign.requests], [5, [GENERIC_REQUEST]]);
        for (const authorization of tokens) await opensOneTunnel(ours.address, target.port, authorization);
    } finally {
        await ours.stop();
        await foreign.close();
    }
});

/** The gateway's challenges, of type 1 and of type 2, read by privacypass-ts. */
async function challenges() {
    const { status, headers } = await connect(system.gateway, target.port);
    assert.equal(status, 407);
    const offered = WWWAuthenticateHeader.parse(headers['proxy-authenticate']);
    assert.deepEqual(offered.map(({ challenge }) => challenge.tokenType), [1, 2]);
    return offered;
}
