// Requests that a gateway must refuse, and the expected answers. None may be admitted, and none may spend a token.

import { randomBytes } from 'k6/crypto';
import encoding from 'k6/encoding';
import { plan } from './plan.js';
import { record } from './answers.js';
import { request, send } from './connect.js';
import { spare } from './tokens.js';

// A token is type (2 bytes), nonce (32), challenge digest (32), token key id (32), signature (256): 354 bytes, which are
// 472 letters of base64url without padding.
const SIGNATURE = 300;
const KEY_ID = 100;
const CHALLENGE = 60;

// The spare token with one letter changed.
function changed(position) {
    const start = 'PrivateToken token="'.length;
    const text = spare();
    const at = start + position;
    return text.slice(0, at) + (text[at] === 'A' ? 'B' : 'A') + text.slice(at + 1);
}

const token = (text) => ({ 'Proxy-Authorization': text });

// In this order, so that a few of them show every status.
const CLASSES = [
    { name: 'no-token', fields: () => ({}), allowed: ['challenged'] },
    { name: 'no-port', target: 'target.example', fields: () => ({}), allowed: ['400'] },
    { name: 'header-too-large', fields: () => ({ 'X-Filling': 'x'.repeat(20 * 1024) }), allowed: ['431'] },
    { name: 'other-scheme', fields: () => token('Basic dXNlcjpwYXNz'), allowed: ['challenged'] },
    { name: 'cut-short', fields: () => token('PrivateToken token="AAIA"'), allowed: ['challenged'] },
    { name: 'no-parameter', fields: () => token('PrivateToken'), allowed: ['challenged'] },
    {
        name: 'random-bytes',
        fields: () => token(`PrivateToken token="${encoding.b64encode(randomBytes(354), 'rawurl')}"`),
        allowed: ['challenged'],
    },
    { name: 'bad-signature', fields: () => token(changed(SIGNATURE)), allowed: ['challenged'] },
    { name: 'other-key', fields: () => token(changed(KEY_ID)), allowed: ['challenged'] },
    { name: 'other-challenge', fields: () => token(changed(CHALLENGE)), allowed: ['challenged'] },
    { name: 'not-proxied', method: 'GET', fields: () => ({}), allowed: ['400'] },
];

// Sends the nth class of garbage. `alsoAllowed`: further expected answers, such as those of an outage.
export function garbage(nth, daemon, alsoAllowed = []) {
    const { name, method, target = plan.target, fields, allowed } = CLASSES[nth % CLASSES.length];
    const built = request(daemon, fields(), target);
    const began = Date.now();
    const response = send(method ? { ...built, method, url: `${daemon.url}/` } : built);
    return record(response, {
        began,
        kind: `garbage:${name}`,
        daemon: daemon.name,
        allowed: [...allowed, ...alsoAllowed],
    });
}
