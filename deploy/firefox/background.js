// Sends the requests of pages through a gateway, each with the next token of a list. Without a gateway or a token they fail.
//
// Not covered: WebRTC; private windows, unless the user allows the extension there; and Firefox's own requests, as for updates, which
// go directly when a proxy fails (network.proxy.failover_direct).
//
// Firefox asks for a proxy before it knows whether the request needs a connection, so a token is taken for each request; only that of
// one which opens a connection is sent. A token that was taken is never offered again: sent twice, it would link two tunnels.

/* global mint, prepare */
const [LOW, HIGH] = [16, 48];
/** Milliseconds after a failure before the next refill, and between two renewals because tokens are refused. */
const [PAUSE, RENEWAL] = [10_000, 60_000];
// A request that must not be sent fails.
const NOWHERE = { type: 'https', host: '127.0.0.1', port: 1 };
// The gateway answers the extension itself with its challenge; nothing listens there.
const CHALLENGE = 'http://challenge.invalid/';

const { storage } = browser;
const everything = { urls: ['<all_urls>'] };
const isOwn = (originUrl) => originUrl?.startsWith(browser.runtime.getURL(''));
let [queue, minting, generation, resumes, renewed] = [Promise.resolve(), null, 0, 0, -Infinity];

/** Runs `act` after all earlier calls: the list is read and written as a whole. */
function inTurn(act) {
    const done = queue.then(async () => act(await storage.local.get({ gateway: '', issuer: '', key: '', tokens: [], used: 0 })));
    queue = done.catch(() => {});
    return done;
}

function proxy(gateway, token) {
    const { hostname, port } = new URL(gateway);
    return { type: 'https', host: hostname, port: Number(port || 443), ...(token && { proxyAuthorizationHeader: token }) };
}

/** Mints what the list lacks. Returns the tokens, and the first failure. */
async function signed() {
    const { gateway, issuer, key, tokens } = await inTurn((now) => now);
    const refusal = await fetch(CHALLENGE, { cache: 'no-store' });
    const prepared = await prepare(refusal.headers.get('proxy-authenticate'), gateway, issuer);
    const count = Math.max(HIGH - tokens.length, 0);
    const results = await Promise.allSettled(Array.from({ length: count }, () => mint(prepared, key)));
    return [results.flatMap(({ value }) => value ?? []), results.find(({ reason }) => reason)?.reason];
}

/** Fills the list, unless that is under way or has just failed. */
function refill() {
    if (minting || performance.now() < resumes) return minting;
    const started = generation;
    minting = signed().catch((error) => [[], error]).then(([more, error]) => inTurn(({ tokens }) => {
        if (started !== generation) return undefined; // the list was dropped meanwhile
        [minting, resumes] = [null, error ? performance.now() + PAUSE : 0];
        return storage.local.set({ tokens: [...tokens, ...more], trouble: String(error ?? '') });
    }));
    return minting;
}

/** Takes the next token for good: the list without it is stored before the token is used. */
const take = () => inTurn(async ({ gateway, tokens: [token, ...left], used }) => {
    if (!gateway || !token) return NOWHERE;
    await storage.local.set({ tokens: left, used: used + 1 });
    if (left.length < LOW) refill();
    return proxy(gateway, token);
});

// Firefox would connect directly if this threw.
browser.proxy.onRequest.addListener(async ({ url, originUrl }) => {
    try {
        if (isOwn(originUrl)) return url === CHALLENGE ? await inTurn(({ gateway }) => proxy(gateway)) : { type: 'direct' };
        const { gateway, tokens } = await storage.local.get({ gateway: '', tokens: [] });
        if (gateway && !tokens.length) await refill();
        return await take();
    } catch {
        return NOWHERE;
    }
}, everything);

// Of the request for a signature, Origin is the extension's URL, by which the issuer would recognise the installation.
browser.webRequest.onBeforeSendHeaders.addListener(({ originUrl, requestHeaders }) => (
    isOwn(originUrl) ? { requestHeaders: requestHeaders.filter(({ name }) => name.toLowerCase() !== 'origin') } : {}
), { ...everything, tabId: -1 }, ['blocking', 'requestHeaders']);

/** Drops all tokens and mints others. */
const renew = (settings) => inTurn(async () => {
    await storage.local.set({ ...settings, tokens: [], trouble: '' });
    [generation, minting, resumes] = [generation + 1, null, 0];
}).then(refill);
browser.runtime.onMessage.addListener(renew);
// The gateway may have another key or another mark. Rarely, so that one which refuses all does not use up the quota.
browser.webRequest.onErrorOccurred.addListener(({ error, timeStamp }) => {
    if (error !== 'NS_ERROR_PROXY_AUTHENTICATION_FAILED' || timeStamp < renewed + RENEWAL) return;
    renewed = timeStamp;
    renew({});
}, everything);
