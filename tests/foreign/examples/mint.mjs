// tests/foreign/examples/mint.mjs: a page through the gateway with a token of one's own making, no part of Postern used.
//
//     npm install undici @cloudflare/privacypass-ts
//     node mint.mjs http://127.0.0.1:8080 http://127.0.0.1:8081 https://example.com/ [API KEY]
import { AuthorizationHeader, WWWAuthenticateHeader, publicVerif } from '@cloudflare/privacypass-ts';
import { once } from 'node:events';
import http from 'node:http';
import { ProxyAgent, fetch } from 'undici';

const [gateway, issuer, url, apiKey] = process.argv.slice(2);

// 1. What does the gateway want? A CONNECT without a token gets 407 with a challenge.
const asking = http.request(gateway, { method: 'CONNECT', path: 'challenge.invalid:443' }).end();
const [refusal, socket] = await once(asking, 'connect');
socket.destroy();
const [wanted] = WWWAuthenticateHeader.parse(refusal.headers['proxy-authenticate']);

// 2. Accept only a key that the issuer publishes for everyone.
const directory = new URL('/.well-known/private-token-issuer-directory', issuer);
const published = await (await fetch(directory)).json();
const same = (key) => Buffer.from(key['token-key'], 'base64url').equals(Buffer.from(wanted.tokenKey));
if (!published['token-keys'].some(same)) throw new Error('the issuer does not publish the key of the challenge');

// 3. A token: blinded here, signed there, unblinded here (RFC 9578, section 6).
const client = new publicVerif.Client(publicVerif.BlindRSAMode.PSS);
const request = await client.createTokenRequest(wanted.challenge, wanted.tokenKey);
const answer = await fetch(new URL(published['issuer-request-uri'], directory), {
    method: 'POST',
    headers: {
        'content-type': 'application/private-token-request',
        ...(apiKey && { authorization: `Bearer ${apiKey}` }),
    },
    body: request.serialize(),
});
if (!answer.ok) throw new Error(`the issuer answered ${answer.status}: ${await answer.text()}`);
const response = client.deserializeTokenResponse(new Uint8Array(await answer.arrayBuffer()));
const token = new AuthorizationHeader(await client.finalize(response)).toString();

// 4. One tunnel. `token` is sent with each CONNECT of this ProxyAgent: take a new one for the next.
const page = await fetch(url, { dispatcher: new ProxyAgent({ uri: gateway, token }) });
console.log(await page.text());
