// Sends every request of Firefox through a gateway, with the next token of a list. Without a gateway or a token nothing is sent.
//
// Firefox asks for a proxy before it knows whether the request needs a connection, so a token is taken for each request; only that of
// one which opens a connection is sent. A token that was taken is never offered again: sent twice, it would link two tunnels.

/* global mint, prepare */
const [LOW, HIGH] = [16, 48];
// A request that must not be sent fails.
const NOWHERE = { type: 'https', host: '127.0.0.1', port: 1 };
// The gateway answers the extension itself with its challenge; nothing listens there.
const CHALLENGE = 'http://challenge.invalid/';

const { storage } = browser;
let [turn, minting, refused] = [Promise.resolve(), null, -Infinity];

/** Runs after all that came before: the list is read and written as a whole. */
function next(act) {
    const done = turn.then(async () => act(await storage.local.get({ gateway: '', issuer: '', key: '', tokens: [], used: 0 })));
    turn = done.catch(() => {});
    return done;
}

function proxy(gateway, token) {
    const { hostname, port } = new URL(gateway);
    return { type: 'https', host: hostname, port: Number(port || 443), ...(token && { proxyAuthorizationHeader: token }) };
}

/** Mints until the list is full again. */
function refill() {
    minting ??= (async () => {
        const { gateway, issuer, key, tokens = [] } = await storage.local.get();
        const refusal = await fetch(CHALLENGE, { cache: 'no-store' });
        const prepared = await prepare(refusal.headers.get('proxy-authenticate'), issuer);
        const count = Math.max(HIGH - tokens.length, 0);
        const more = await Promise.all(Array.from({ length: count }, () => mint(prepared, key)));
        await next((now) => now.gateway === gateway && storage.local.set({ tokens: [...now.tokens, ...more], trouble: '' }));
    })().catch((error) => storage.local.set({ trouble: String(error) })).finally(() => (minting = null));
    return minting;
}

/** Takes the next token for good: the list without it is stored before the token is used. */
const take = () => next(async ({ gateway, tokens: [token, ...left], used }) => {
    if (!gateway || !token) return NOWHERE;
    await storage.local.set({ tokens: left, used: used + 1 });
    if (left.length < LOW) refill();
    return proxy(gateway, token);
});

browser.proxy.onRequest.addListener(async ({ url, originUrl }) => {
    if (originUrl?.startsWith(browser.runtime.getURL(''))) {
        return url === CHALLENGE ? next(({ gateway }) => proxy(gateway)) : { type: 'direct' };
    }
    const { gateway, tokens } = await storage.local.get({ gateway: '', tokens: [] });
    if (gateway && !tokens.length) await refill();
    return take().catch(() => NOWHERE);
}, { urls: ['<all_urls>'] });

/** Drops all tokens and mints others. */
const renew = (settings) => next(() => storage.local.set({ ...settings, tokens: [] })).then(refill);
browser.runtime.onMessage.addListener(renew);
// The gateway may have another key or another mark. Once a minute, so that one which refuses all does not use up the quota.
browser.webRequest.onErrorOccurred.addListener(({ error, timeStamp }) => {
    if (error !== 'NS_ERROR_PROXY_AUTHENTICATION_FAILED' || timeStamp < refused + 60_000) return;
    refused = timeStamp;
    renew({});
}, { urls: ['<all_urls>'] });
