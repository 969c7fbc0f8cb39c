// The extension of deploy/firefox in Firefox: it mints its tokens itself, and no agent is used.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { firefox, skip } from './firefox.js';
import { recordingRelay } from './firefox-relay.js';
import { secureGateway, stage } from './stage.js';
import { scripted } from './targets.js';

const within = { timeout: 180_000, skip };
const extension = join(import.meta.dirname, '../../deploy/firefox');

let stop, scratch, system, site, gateway, browser, cert, key;
before(async () => {
    if (skip) return;
    ({ stop, scratch, system } = await stage());
    [cert, key] = ['cert.pem', 'key.pem'].map((name) => join(scratch.path, name));
    site = await scripted({ cert, key });
    gateway = await secureGateway({ scratch, system }, 'gateway', 'egress = { private = true, ports = "any" }');
    gateway.url = `https://${gateway.address}`;
    browser = await firefox(scratch.path, extension);
});
after(async () => {
    await browser?.stop();
    await site?.close();
    await gateway?.stop();
    await stop?.();
});

/** Saves these settings on the options page, and waits for tokens; or runs a script there. Returns how many tokens were taken so far. */
async function options(settings = {}, act = '') {
    const own = await browser.command('WebDriver:GetWindowHandle');
    await browser.open('options.html');
    const script = `
        const [settings, done] = arguments;
        (async () => {
            for (const [id, value] of Object.entries(settings)) document.getElementById(id).value = value;
            if (settings.gateway) document.forms[0].requestSubmit();
            ${act}
            for (;;) {
                const { gateway, tokens = [], used = 0, trouble = '' } = await browser.storage.local.get();
                // Tokens of earlier settings are dropped when new ones are stored.
                const isSaved = !settings.gateway || gateway === settings.gateway;
                if (isSaved && (trouble || tokens.length || !settings.gateway)) return done({ trouble, used });
                await new Promise((next) => setTimeout(next, 20));
            }
        })();
    `;
    const found = await browser.command('WebDriver:ExecuteAsyncScript', { script, args: [settings] });
    await browser.command('WebDriver:CloseWindow');
    await browser.command('WebDriver:SwitchToWindow', { handle: own });
    assert.equal(found.trouble, '');
    return found.used;
}

const load = (path) => browser.command('WebDriver:Navigate', { url: site.url + path });

/** Loads pages; returns the connections that their server got, and the tokens that were taken. */
async function loads(count, path) {
    const [connections, used] = [site.connections(), await options()];
    for (let n = 0; n < count; n += 1) await load(`${path}?${n}`);
    const { value } = await gateway.metrics();
    assert.equal(value('postern_requests_total{outcome="already_spent"}'), 0);
    return { connections: site.connections() - connections, taken: (await options()) - used };
}

test('without a token nothing is sent', within, async () => {
    await assert.rejects(load(''), /proxy/i);
    assert.equal(site.connections(), 0);
});

test('requests of Firefox itself go directly when the proxy fails', within, async () => {
    await browser.command('Marionette:SetContext', { value: 'chrome' });
    const script = `
        const [url, done] = arguments;
        const { ServiceRequest } = ChromeUtils.importESModule('resource://gre/modules/ServiceRequest.sys.mjs');
        const request = new ServiceRequest();
        request.open('GET', url);
        request.onload = request.onerror = () => done(request.status);
        request.send();
    `;
    const status = await browser.command('WebDriver:ExecuteAsyncScript', { script, args: [site.url] });
    await browser.command('Marionette:SetContext', { value: 'content' });
    assert.deepEqual([status, site.connections()], [200, 1]);
    await options({ gateway: gateway.url, issuer: `http://${system.issuer}` });
});

// Firefox itself sends requests, too: tokens taken can be more, connections of the site cannot.
test('N loads over connections that close take N tokens, and send them', within, async () => {
    const { connections, taken } = await loads(5, 'close');
    assert.equal(connections, 5);
    assert.ok(taken >= 5, `${taken}`);
});

test('a page takes a token for each request, and sends one for each connection', within, async () => {
    const { connections, taken } = await loads(2, 'close/scripts');
    assert.equal(connections, 18);
    assert.ok(taken >= 18, `${taken}`);
});

test('N loads over one connection take N tokens, and send one', within, async () => {
    const { connections, taken } = await loads(5, '');
    assert.equal(connections, 1);
    assert.ok(taken >= 5, `${taken}`);
});

test('a token that is refused is replaced with all others', within, async () => {
    await options({}, `
        const { inTurn } = await browser.runtime.getBackgroundPage();
        await inTurn(({ tokens: [one] }) => browser.storage.local.set({ tokens: Array(40).fill(one) }));
    `);
    // A kept connection may serve the first load, and the refused request may be one of Firefox itself.
    for (const path of ['close?1', 'close?2', 'close?3']) await load(path).catch((error) => assert.match(error.message, /proxy/i));
    await options({}, `
        for (let kept = [1, 1]; !kept.length || new Set(kept).size < kept.length; ) {
            kept = (await browser.storage.local.get()).tokens;
            await new Promise((next) => setTimeout(next, 20));
        }
    `);
    const { value } = await gateway.metrics();
    assert.ok(value('postern_requests_total{outcome="already_spent"}') > 0);
    await load('close?4');
});

test('no header tells issuer or gateway which installation it is', within, async () => {
    const relays = [await recordingRelay(system.issuer), await recordingRelay(gateway.address, { cert, key })];
    const [toIssuer, toGateway] = relays;
    try {
        await options({ gateway: `https://localhost:${toGateway.port}`, issuer: `http://127.0.0.1:${toIssuer.port}` });
        const [minted, asked] = [toIssuer.heads('POST '), toGateway.heads('GET http://challenge.invalid/ ')];
        assert.ok(minted.length > 0 && asked.length > 0, `${minted.length} and ${asked.length} requests`);
        for (const head of [...minted, ...asked, ...toIssuer.heads('GET ')]) {
            assert.ok(!head.includes(browser.uuid) && !/^(origin|referer|cookie):|moz-extension|postern@/im.test(head), head);
        }
    } finally {
        await options({ gateway: gateway.url, issuer: `http://${system.issuer}` });
        await Promise.all(relays.map((relay) => relay.close()));
    }
});
