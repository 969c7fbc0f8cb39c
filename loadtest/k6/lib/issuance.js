// Token requests. k6 cannot blind a message, but a blinded message is a random-looking number below the modulus: any
// such number is a valid request, and costs the issuer the same. A sample of the answers is verified: raised to the
// public exponent, an answer must be the number that was sent.

import { randomBytes, sha256 } from 'k6/crypto';
import encoding from 'k6/encoding';
import http from 'k6/http';
import { plan } from './plan.js';
import { record } from './answers.js';

const TYPE = 'application/private-token-request';
const SIZE = 256; // bytes of a number modulo a key of 2048 bits
const EXPONENT = 65537n;
const VERIFIED = 50; // one answer in this number

// The key that clients use: the first of the directory that is in use.
export function fetchKey() {
    const answer = http.get(`${plan.issuer}/.well-known/private-token-issuer-directory`, { responseType: 'text' });
    if (answer.status !== 200) throw new Error(`the issuer's directory is answered ${answer.status}`);
    const directory = answer.json();
    const now = Date.now() / 1000;
    const key = directory['token-keys'].find((each) => each['token-type'] === 2 && (each['not-before'] || 0) <= now);
    if (!key) throw new Error('the issuer has no key in use');
    const encoded = encoding.b64decode(key['token-key'], key['token-key'].endsWith('=') ? 'url' : 'rawurl');
    const path = directory['issuer-request-uri'];
    return {
        url: path.startsWith('/') ? plan.issuer + path : path,
        id: new Uint8Array(sha256(encoded, 'binary'))[31], // its last byte names the key in a request
        modulus: hex(modulus(new Uint8Array(encoded))),
    };
}

// The modulus in a SubjectPublicKeyInfo: the only INTEGER of 257 bytes, the first of which is 0.
function modulus(encoded) {
    for (let at = 0; at + 5 + SIZE <= encoded.length; at += 1) {
        const head = encoded.slice(at, at + 5);
        if (head[0] === 2 && head[1] === 0x82 && head[2] === 1 && head[3] === 1 && head[4] === 0) {
            return encoded.slice(at + 5, at + 5 + SIZE);
        }
    }
    throw new Error('the key is no RSA key of 2048 bits');
}

function hex(bytes) {
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function request(key) {
    const body = new Uint8Array(3 + SIZE);
    body.set([0, 2, key.id]);
    body.set(new Uint8Array(randomBytes(SIZE)), 3);
    body[3] &= 0x7f; // a modulus of 2048 bits has its highest bit set: now the number is below it
    return body;
}

function post(key, body) {
    const headers = { 'Content-Type': TYPE };
    if (__ENV.POSTERN_ISSUER_API_KEY) headers.Authorization = `Bearer ${__ENV.POSTERN_ISSUER_API_KEY}`;
    const params = { headers, responseType: 'binary', timeout: '60s' };
    return { method: 'POST', url: key.url, body: body.buffer, params };
}

function isSignature(key, body, signature) {
    const number = (bytes) => BigInt(`0x${hex(bytes)}`);
    const n = BigInt(`0x${key.modulus}`);
    let square = number(new Uint8Array(signature)) % n;
    let power = 1n;
    for (let left = EXPONENT; left > 0n; left >>= 1n) {
        if (left & 1n) power = (power * square) % n;
        square = (square * square) % n;
    }
    return power === number(body.slice(3));
}

function classOf(key, body) {
    return (response) => {
        const retry = response.headers['Retry-After'];
        if (response.status === 0) return 'no-answer';
        if (response.status === 429 || response.status === 503) return retry ? 'busy' : 'busy-without-retry-after';
        if (response.status !== 200) return String(response.status);
        if (!response.body || response.body.byteLength !== SIZE) return 'wrong-length';
        if (Math.random() * VERIFIED < 1 && !isSignature(key, body, response.body)) return 'bad-signature';
        return 'issued';
    };
}

// Requests one signature.
export function issue(key, allowed = ['issued']) {
    issueMany(key, 1, allowed);
}

// Requests several at once.
export function issueMany(key, count, allowed) {
    const bodies = Array.from({ length: count }, () => request(key));
    const began = Date.now();
    const responses = http.batch(bodies.map((body) => post(key, body)));
    responses.forEach((response, nth) =>
        record(response, { began, kind: 'issue', daemon: 'issuer', allowed }, classOf(key, bodies[nth])),
    );
}
