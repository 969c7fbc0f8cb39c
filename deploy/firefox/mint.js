// Tokens of type 2 (RFC 9578, section 6): blinded here, signed by the issuer, unblinded and verified here (RFC 9474, RSABSSA-SHA384-PSS).

const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const random = (length) => crypto.getRandomValues(new Uint8Array(length));
const sha = async (bits, data) => new Uint8Array(await crypto.subtle.digest(`SHA-${bits}`, data));
const number = (bytes) => BigInt(`0x${[...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`);
const encoded = (value) => Uint8Array.from(value.toString(16).padStart(512, '0').match(/../g), (pair) => parseInt(pair, 16));
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (char) => char.charCodeAt(0));
const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_');

/** `base ** 65537`. */
function power(base, modulus) {
    let found = base;
    for (let n = 0; n < 16; n += 1) found = (found * found) % modulus;
    return (found * base) % modulus;
}

function inverse(value, modulus) {
    let [a, b, x, y] = [value, modulus, 1n, 0n];
    while (b) [a, b, x, y] = [b, a % b, y, x - (a / b) * y];
    if (a !== 1n) throw new Error('no inverse');
    return ((x % modulus) + modulus) % modulus;
}

/** EMSA-PSS (RFC 8017, section 9.1.1) for 2,048 bits, with a salt of 48 bytes. */
async function encodedForSigning(message) {
    const salt = random(48);
    const hash = await sha(384, join(new Uint8Array(8), await sha(384, message), salt));
    const masks = await Promise.all([0, 1, 2, 3, 4].map((count) => sha(384, join(hash, [0, 0, 0, count]))));
    const mask = join(...masks);
    const block = join(new Uint8Array(158), [1], salt).map((byte, at) => byte ^ mask[at]);
    block[0] &= 0x7f;
    return join(block, hash, [0xbc]);
}

/** The challenge of type 2 in a field, and its key, which the issuer must publish for everyone; and where it signs. */
async function prepare(field, issuer) {
    const [, challenge, key] = field.match(/PrivateToken challenge="?(AAI[^",]*)"?, *token-key="?([^",]*)/);
    const directory = new URL('/.well-known/private-token-issuer-directory', issuer);
    const published = await (await fetch(directory, { cache: 'no-cache' })).json();
    const plain = (text) => text.replace(/=/g, '');
    if (!published['token-keys'].some((one) => plain(one['token-key']) === plain(key))) {
        throw new Error('the issuer does not publish the key of the challenge');
    }
    const spki = fromBase64(key); // it ends with the modulus, of 256 bytes, and 65537
    return {
        uri: new URL(published['issuer-request-uri'], directory),
        modulus: number(spki.slice(-261, -5)),
        keyId: await sha(256, spki),
        digest: await sha(256, fromBase64(challenge)),
    };
}

/** The value of Proxy-Authorization with a new token. */
async function mint({ uri, modulus, keyId, digest }, apiKey) {
    const input = join([0, 2], random(32), digest, keyId);
    const message = number(await encodedForSigning(input));
    const blind = number(random(256)) % modulus;
    const unblind = inverse(blind, modulus);
    const body = join([0, 2, keyId.at(-1)], encoded((message * power(blind, modulus)) % modulus));
    const headers = { 'content-type': 'application/private-token-request', ...(apiKey && { authorization: `Bearer ${apiKey}` }) };
    const answer = await fetch(uri, { method: 'POST', headers, body });
    if (!answer.ok) throw new Error(`the issuer answered ${answer.status}: ${await answer.text()}`);
    const signature = (number(new Uint8Array(await answer.arrayBuffer())) * unblind) % modulus;
    if (power(signature, modulus) !== message) throw new Error('the issuer signed something else');
    return `PrivateToken token="${toBase64(join(input, encoded(signature)))}"`;
}
