// Tokens of type 2 (RFC 9578, section 6): blinded here, signed by the issuer, unblinded and verified here (RFC 9474, RSABSSA-SHA384-PSS).

const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const random = (length) => crypto.getRandomValues(new Uint8Array(length));
const sha = async (bits, data) => new Uint8Array(await crypto.subtle.digest(`SHA-${bits}`, data));
const number = (bytes) => BigInt(`0x${[...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`);
const encoded = (value) => Uint8Array.from(value.toString(16).padStart(512, '0').match(/../g), (pair) => parseInt(pair, 16));
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (char) => char.charCodeAt(0));
const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_');

/** Returns `base ** 65537 % modulus`: RSA with the public key. */
function publicOperation(base, modulus) {
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

const MARK = /^m-[a-z2-7]{26}\.(.+)$/;
/** Throws unless a TokenChallenge (RFC 9577, section 2.1) is of type 2, has no redemption context and names the gateway. */
function checkChallenge(bytes, gateway) {
    let at = 2;
    const vector = (size) => {
        const length = bytes.slice(at, at + size).reduce((sum, byte) => sum * 256 + byte, 0);
        at += size + length;
        return bytes.slice(at - length, at);
    };
    const [, context, origins] = [vector(2), vector(1), vector(2)];
    if (at !== bytes.length || bytes[0] !== 0 || bytes[1] !== 2) throw new Error('the challenge is malformed or not of type 2');
    if (context.length) throw new Error('the challenge has a redemption context, which could tell clients apart');
    const names = String.fromCharCode(...origins).toLowerCase().split(',');
    // The last name may carry the gateway's mark: it is below the first, or below "invalid" if that is an address.
    if ([names[0], 'invalid'].includes(MARK.exec(names.at(-1))?.[1])) names.pop();
    const { host, hostname } = new URL(gateway);
    if (!names.some((name) => [host, hostname].includes(name)) || names.some((name) => MARK.test(name))) {
        throw new Error(`the challenge is for "${names}", and the gateway is "${host}"`);
    }
}

/** Returns the challenge of type 2 in a field and its key, which the issuer must publish for everyone; and where it signs. */
async function prepare(field, gateway, issuer) {
    const [, challenge, key] = field?.match(/PrivateToken challenge="?(AAI[^",]*)"?, *token-key="?([^",]*)/) ?? [];
    if (!key) throw new Error('the gateway sent no challenge of type 2 with a key');
    checkChallenge(fromBase64(challenge), gateway);
    const directory = new URL('/.well-known/private-token-issuer-directory', issuer);
    // A cached copy would be revalidated with an ETag, by which an issuer could recognise the installation.
    const published = await (await fetch(directory, { cache: 'no-store' })).json();
    const plain = (text) => text.replace(/=/g, '');
    if (!published['token-keys'].some((one) => plain(one['token-key']) === plain(key))) {
        throw new Error('the issuer does not publish the key of the challenge');
    }
    const spki = fromBase64(key); // it ends with the modulus, of 256 bytes, and 65537
    if (!(spki.at(-261) > 127)) throw new Error('the key of the challenge is not of 2,048 bits');
    return {
        uri: new URL(published['issuer-request-uri'], directory),
        modulus: number(spki.slice(-261, -5)),
        keyId: await sha(256, spki),
        digest: await sha(256, fromBase64(challenge)),
    };
}

/** Returns a value of Proxy-Authorization with a new token. */
async function mint({ uri, modulus, keyId, digest }, apiKey) {
    const input = join([0, 2], random(32), digest, keyId);
    const message = number(await encodedForSigning(input));
    let blind; // uniform in 1..modulus (RFC 9474, section 4.2)
    do blind = number(random(256)); while (!blind || blind >= modulus);
    const unblind = inverse(blind, modulus);
    const body = join([0, 2, keyId.at(-1)], encoded((message * publicOperation(blind, modulus)) % modulus));
    const headers = { 'content-type': 'application/private-token-request', ...(apiKey && { authorization: `Bearer ${apiKey}` }) };
    const answer = await fetch(uri, { method: 'POST', headers, body });
    if (!answer.ok) throw new Error(`the issuer answered ${answer.status}: ${await answer.text()}`);
    const signature = (number(new Uint8Array(await answer.arrayBuffer())) * unblind) % modulus;
    if (publicOperation(signature, modulus) !== message) throw new Error('the issuer signed something else');
    return `PrivateToken token="${toBase64(join(input, encoded(signature)))}"`;
}
