// The scripts of deploy/firefox in Node, where a test chooses what gateway, issuer and browser answer. No Firefox is needed.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import vm from 'node:vm';

const GATEWAY = 'https://proxy.example:8443';
const MARK = `m-${'a'.repeat(26)}`;
const OWN = 'moz-extension://an-id/';
const HIGH = 48;
const within = { timeout: 60_000 };

/** Runs a script of the extension; its functions are properties of what is returned. */
function load(name, globals) {
    const context = vm.createContext({ URL, Error, crypto, atob, btoa, ...globals });
    vm.runInContext(readFileSync(join(import.meta.dirname, '../../deploy/firefox', name), 'utf8'), context);
    return context;
}

/** A TokenChallenge (RFC 9577, section 2.1). */
function challenge(names, { type = 2, context = [] } = {}) {
    const vector16 = (text) => [text.length >> 8, text.length & 255, ...Buffer.from(text)];
    return Uint8Array.from([0, type, ...vector16('issuer.example'), context.length, ...context, ...vector16(names)]);
}

const { checkChallenge, prepare } = load('mint.js');
const check = (...args) => () => checkChallenge(challenge(...args), GATEWAY);

test('a challenge may name the gateway, others of its fleet, and one mark', () => {
    const named = ['proxy.example', 'Proxy.example:8443', 'a.example,proxy.example'];
    for (const names of named) check(names)();
    check(`proxy.example,${MARK}.proxy.example`)();
    check(`a.example,proxy.example,${MARK}.a.example`)();
    checkChallenge(challenge(`192.0.2.1,${MARK}.invalid`), 'https://192.0.2.1');
});

test('a challenge is refused that is of another type, has a context or is cut off', () => {
    assert.throws(check('proxy.example', { type: 1 }), /type 2/);
    assert.throws(check('proxy.example', { context: Array(32).fill(7) }), /redemption context/);
    const whole = challenge('proxy.example');
    for (let length = 0; length < whole.length; length += 1) {
        assert.throws(() => checkChallenge(whole.slice(0, length), GATEWAY), /malformed/, `${length}`);
    }
    assert.throws(() => checkChallenge(Uint8Array.from([...whole, 0]), GATEWAY), /malformed/);
});

test('a challenge is refused that names another gateway, or two marks', () => {
    const own = `${MARK}.proxy.example`;
    const second = [`other.example,${own}`, `proxy.example,${MARK}.other.example`, `proxy.example,${own},${own}`];
    for (const names of ['', 'other.example', own, ...second]) {
        assert.throws(check(names), /the gateway is "proxy\.example:8443"/, names);
    }
});

test('a field without a challenge of type 2 is refused', async () => {
    for (const field of [null, 'Basic realm="a"', 'PrivateToken challenge="AAEA", token-key="AA"']) {
        await assert.rejects(prepare(field, GATEWAY, 'https://issuer.example'), /no challenge of type 2/);
    }
});

/** Runs background.js. `mint` makes a token, `state` is the extension's storage, and `clock.now` its time. */
function background({ mint, prepare = async () => ({}), state = { gateway: GATEWAY } }) {
    const clock = { now: 0 };
    const listeners = {};
    const event = (name) => ({ addListener: (listener) => (listeners[name] = listener) });
    const get = async (defaults) => structuredClone({ ...defaults, ...state });
    const set = async (values) => void Object.assign(state, values);
    const browser = {
        storage: { local: { get, set } },
        runtime: { getURL: (path) => OWN + path, onMessage: event('message') },
        proxy: { onRequest: event('request') },
        webRequest: { onBeforeSendHeaders: event('headers'), onErrorOccurred: event('error') },
    };
    const fetch = async () => ({ headers: { get: () => 'a challenge' } });
    load('background.js', { browser, fetch, mint, prepare, performance: { now: () => clock.now } });
    return { state, clock, listeners, request: (url = 'https://a.example/', originUrl) => listeners.request({ url, originUrl }) };
}

/** Returns a `mint` that answers with numbered tokens, and refuses the requests whose numbers `refused` says. */
function minter(refused = () => false) {
    const mint = async () => {
        mint.calls += 1;
        if (refused(mint.calls)) throw new Error('the issuer answered 429');
        return `token ${mint.calls}`;
    };
    mint.calls = 0;
    return mint;
}

test('tokens are kept when others are refused, and the next refill waits', async () => {
    const mint = minter((call) => call > 2);
    const { state, clock, listeners, request } = background({ mint });
    await listeners.message({});
    assert.deepEqual([mint.calls, state.tokens.length], [HIGH, 2]);
    assert.match(state.trouble, /429/);
    for (const token of ['token 1', 'token 2']) assert.equal((await request()).proxyAuthorizationHeader, token);
    clock.now = 9_999;
    assert.equal((await request()).port, 1);
    assert.equal(mint.calls, HIGH);
    clock.now = 10_000;
    await request();
    assert.equal(mint.calls, 2 * HIGH);
});

test('a refill under way adds nothing after the tokens were dropped', within, async () => {
    const waiting = [];
    const mint = () => new Promise((done) => waiting.push(done));
    const { state, listeners } = background({ mint });
    const minted = async (count) => {
        while (waiting.length < count) await new Promise(setImmediate);
    };
    const [first] = [listeners.message({ gateway: 'https://first.example' }), await minted(HIGH)];
    const [second] = [listeners.message({ gateway: 'https://second.example' }), await minted(2 * HIGH)];
    waiting.forEach((done, at) => done(at < HIGH ? 'old' : 'new'));
    await Promise.all([first, second]);
    assert.equal(state.gateway, 'https://second.example');
    assert.deepEqual([...state.tokens], Array(HIGH).fill('new'));
});

test('a failed refill of dropped tokens neither reports nor delays', within, async () => {
    let fail;
    const outcomes = [new Promise((_, failed) => (fail = failed)), Promise.resolve({})];
    const { state, listeners } = background({ mint: minter(), prepare: () => outcomes.shift() });
    const first = listeners.message({});
    while (outcomes.length > 1) await new Promise(setImmediate);
    await listeners.message({});
    fail(new Error('too late'));
    await first;
    assert.deepEqual([state.tokens.length, state.trouble], [HIGH, '']);
});

test('no request goes directly when something throws', async () => {
    const on = background({ mint: minter(), state: { gateway: 'not a URL', tokens: ['token'] } });
    assert.equal((await on.request()).port, 1);
    assert.equal((await on.request('http://challenge.invalid/', OWN)).port, 1);
    const { request } = background({ mint: minter(), state: { get gateway() { throw new Error('the storage is broken'); } } });
    assert.equal((await request()).port, 1);
});

test('the options page shows why a challenge is refused', async () => {
    const mint = minter();
    const refuse = async () => checkChallenge(challenge('other.example'), GATEWAY);
    const { state, listeners } = background({ mint, prepare: refuse });
    await listeners.message({});
    assert.match(state.trouble, /is for "other\.example"/);
    assert.equal(mint.calls, 0);
});
