// The live page in headless Chromium, as an operator meets it: real traffic, a keyboard, a phone, a restart.

import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { browser as start, missing } from './browser.js';
import { connect } from './connect.js';
import { daemon, folder, mint, run, up } from './postern.js';
import { HOSTILE, busy, worst } from './snapshots.js';
import { page as site } from './targets.js';

const options = { timeout: 100_000, skip: missing };
const images = resolve(import.meta.dirname, '../../docs/images');
const MAX_IMAGE = 250_000;

let scratch, system, target, browser, traffic;
before(async () => {
    if (missing) return;
    scratch = await folder();
    system = await up(join(scratch.path, 'up'));
    target = await site('a page');
    browser = await start();
    traffic = keepBusy();
});
after(async () => {
    await traffic?.stop();
    await browser?.close();
    await system?.stop();
    await target?.close();
    await scratch?.remove();
});

test('tiles, percentiles and the heat map show the traffic, and move', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        assert.match(await page.locator('#state').textContent(), /^(ready|degraded)$/);
        assert.equal(await page.locator('#connection').textContent(), 'live');
        const tiles = () => page.locator('.tile dd:not(.spark)').allTextContents();
        const before = await tiles();
        assert.ok(before.length > 0, 'there is no tile');
        await eventually('a tile changes', async () => String(await tiles()) !== String(before));

        const stages = page.locator('section[data-id="checks"] fieldset').locator('xpath=../..').locator('tbody tr');
        await eventually('a stage has all its percentiles', async () => {
            const rows = await stages.evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText)));
            return rows.some((row) => row.slice(2, 7).every((cell) => /^[\d.,]+\s(ns|µs|ms|s)$/u.test(cell)));
        });
        await eventually('the heat map has a cell', async () => (await colours(page)).size >= 2);
    });
});

test('a replay appears among the refusals', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        const row = page.locator('tr', { has: page.locator('th', { hasText: /^already spent$/ }) });
        const total = async () => Number((await row.count()) ? await row.locator('td').last().textContent() : 0);
        const before = await total();
        const [token] = await mint(system);
        const statuses = [];
        for (let time = 0; time < 2; time += 1) {
            const { status, socket } = await connect(system.gateway, target.port, token);
            socket?.destroy();
            statuses.push(status);
        }
        assert.deepEqual(statuses, [200, 407]);
        await eventually('the replay is counted', async () => (await total()) > before);
    });
});

test('tokens that are issued, spent, held and lost are drawn over time', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        const chart = (label) => page.locator('section[data-id="tokens"] figure', { has: page.getByText(label, { exact: true }) });
        assert.deepEqual(await page.locator('section[data-id="tokens"] figure .head > span > span').allTextContents(), ['Issued', 'Spent', 'Held', 'Lost']);
        const number = async (label) => Number((await chart(label).locator('strong').textContent()).replaceAll(',', ''));
        const [issued, spent] = [await number('Issued'), await number('Spent')];
        assert.ok((await number('Held')) > 0, 'the wallet is empty');
        assert.equal(await number('Lost'), 0);
        // The agent's tunnels spend tokens; a token minted and spent twice at the gateway is issued and spent once.
        const [token] = await mint(system);
        for (let time = 0; time < 2; time += 1) (await connect(system.gateway, target.port, token)).socket?.destroy();
        await eventually('one more is issued', async () => (await number('Issued')) > issued);
        await eventually('one more is spent', async () => (await number('Spent')) > spent);
        const drawn = await chart('Spent').locator('path').nth(1).getAttribute('d');
        assert.match(drawn, /^M\d+,[\d.]+V/);
        assert.match(await chart('Spent').locator('svg').getAttribute('aria-label'), /^Spent, last 5 minutes: at most [1-9]\d* a second$/);
        assert.ok((await chart('Lost').locator('figcaption').textContent()).endsWith('.'), 'what it means is not a sentence');

        // A page opened later has the same minutes: what is kept is in the daemon.
        const first = () => chart('Held').locator('path').nth(1).getAttribute('d').then((d) => Number(/^M(\d+)/.exec(d)[1]));
        const before = await first();
        await page.reload();
        await page.locator('section').first().waitFor();
        assert.ok((await first()) <= before, 'the past is gone');

        const picture = chart('Held').locator('svg');
        const { width, height } = await picture.boundingBox();
        await picture.hover({ position: { x: width - 3, y: height / 2 } });
        await eventually('the mouse reads a second', async () => /^\d\d:\d\d:\d\d: [\d,]+$/.test(await chart('Held').locator('output').textContent()));
    });
});

test('the keyboard reaches the window switch and the heat map, and works them', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        const focused = (selector) => page.evaluate((selector) => document.activeElement.matches(selector), selector);
        const tabTo = async (selector) => {
            for (let presses = 0; presses < 60; presses += 1) {
                await page.keyboard.press('Tab');
                if (await focused(selector)) return;
            }
            assert.fail(`60 presses of Tab do not reach ${selector}`);
        };
        await page.keyboard.press('Tab');
        assert.ok(await focused('.skip'), 'the skip link is not first');
        await page.keyboard.press('Enter');
        assert.ok(await focused('main'), 'the skip link does not lead to the figures');

        await tabTo('input[type=radio]:checked');
        const choice = () => page.locator('input[type=radio]:checked').first().inputValue();
        const first = await choice();
        await page.keyboard.press('ArrowRight');
        const second = await choice();
        assert.notEqual(second, first);
        assert.equal(new URLSearchParams(new URL(page.url()).hash.slice(1)).get('window'), second);
        await page.reload();
        await page.locator('section').first().waitFor();
        assert.equal(await choice(), second, 'the window is forgotten');

        await tabTo('canvas');
        const readout = page.locator('.readout').first();
        const cell = /^\d\d:\d\d:\d\d, .+: ([\d,]+|not known)$/;
        const idle = await readout.textContent();
        assert.doesNotMatch(idle, cell);
        const read = async (key) => {
            const before = await readout.textContent();
            await page.keyboard.press(key);
            await eventually(`${key} moves the cursor`, async () => (await readout.textContent()) !== before);
            return readout.textContent();
        };
        const start = await read('ArrowLeft');
        assert.match(start, cell);
        assert.notEqual(bucket(await read('ArrowUp')), bucket(start));
        assert.equal(bucket(await read('ArrowDown')), bucket(start));
        await page.waitForTimeout(1500); // so that there is a second before the newest
        assert.notEqual((await read('Home')).slice(0, 8), start.slice(0, 8));
        assert.equal(await read('Escape'), idle);

        // The mouse reads the same cells.
        const box = await page.locator('canvas').first().boundingBox();
        await page.mouse.move(box.x + box.width - 5, box.y + box.height / 2);
        await eventually('the mouse reads a cell', async () => cell.test(await readout.textContent()));
    });
});

test('a hidden page is not drawn, and a drawn one keeps its nodes', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        const uptime = () => page.locator('#uptime').textContent();
        const hide = (hidden) => page.evaluate((hidden) => {
            Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
            document.dispatchEvent(new Event('visibilitychange'));
        }, hidden);
        const nodes = await page.locator('section *').elementHandles();
        await hide(true);
        const before = await uptime();
        await page.waitForTimeout(2500);
        assert.equal(await uptime(), before);
        await hide(false);
        assert.notEqual(await uptime(), before, 'it is not drawn when it is looked at again');
        for (const node of nodes) assert.ok(await node.evaluate((node) => node.isConnected), 'a node was replaced');
    });
});

test('it fits 360 pixels without scrolling sideways', options, async () => {
    await using(`http://${system.admin}/`, { viewport: { width: 360, height: 740 }, hasTouch: true }, async (page) => {
        const wide = () => page.evaluate(() => document.documentElement.scrollWidth);
        assert.equal(await wide(), 360);
        await show(page, worst());
        assert.equal(await wide(), 360, 'long names widen the page');
    });
});

test('every section can be reached from the top of a phone, without scrolling sideways', options, async () => {
    await using(`http://${system.admin}/`, { viewport: { width: 360, height: 740 }, hasTouch: true }, async (page) => {
        const links = page.locator('nav a');
        const boxes = await links.evaluateAll((nodes) => nodes.map((node) => {
            const { left, right, bottom } = node.getBoundingClientRect();
            return { name: node.textContent, isSeen: left >= 0 && right <= innerWidth && bottom <= innerHeight };
        }));
        assert.ok(boxes.length > 3, `there are ${boxes.length} sections`);
        assert.deepEqual(boxes.filter(({ isSeen }) => !isSeen), []);
        await links.last().tap();
        const id = (await links.last().getAttribute('href')).slice(1);
        const section = page.locator(`section[data-id="${id}"]`);
        await eventually('the last section is in view', async () => (await section.boundingBox()).y < 740);
    });
});

test('no table is cut off on a usual screen, and none on a phone but those of many columns', options, async () => {
    for (const [width, cut] of [[1300, []], [1024, []], [390, ['Latency by stage', 'Addresses of the shared store']]]) {
        await using(`http://${system.admin}/`, { viewport: { width, height: 900 } }, async (page) => {
            await show(page, busy());
            const tables = await page.locator('.scroll').evaluateAll((nodes) => nodes.map((node) => ({
                title: document.getElementById(node.getAttribute('aria-labelledby')).textContent,
                isCut: node.scrollWidth > node.clientWidth,
                isReachable: node.tabIndex === 0,
            })));
            assert.equal(tables.length, 4);
            assert.deepEqual(tables.filter(({ isCut }) => isCut).map(({ title }) => title), cut, `${width} pixels`);
            assert.ok(tables.every(({ isCut, isReachable }) => isCut === isReachable), 'a cut table has no stop for the Tab key');
        });
    }
});

test('light and dark differ, and both are readable', options, async () => {
    const grounds = [];
    for (const colorScheme of ['light', 'dark']) {
        await using(`http://${system.admin}/`, { colorScheme }, async (page) => {
            await show(page, worst());
            grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
            assert.deepEqual(await page.evaluate(faint), [], `too little contrast in ${colorScheme}`);
        });
    }
    assert.notEqual(grounds[0], grounds[1]);
});

test('strings of the server are text, not HTML', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        await show(page, worst());
        assert.ok((await page.locator('body').innerText()).includes(HOSTILE), 'it is not shown');
        assert.equal(await page.locator('main img, #reasons img, header img').count(), 0);
        assert.equal(await page.evaluate(() => window.hostile), undefined);
    });
});

test('numbers are written with the right unit', options, async () => {
    await using(`http://${system.admin}/`, {}, async (page) => {
        const written = await page.evaluate((values) => values.map(([value, kind]) => format(value, kind).join('')), [
            [0.0000523, 'duration'], [0.00099999, 'duration'], [4e-7, 'duration'], [12.345, 'duration'], [0, 'duration'],
            [4000, 'duration'], [274_000, 'age'], [59, 'age'], [-61, 'age'], [0.2, 'rate'], [812.5, 'rate'],
            [12_345, 'rate'], [1_234_567, 'count'], [999, 'bytes'], [2_300_000, 'bytes_rate'], [0.125, 'percent'],
            [0.00001, 'percent'], [null, 'count'], ['in use', 'text'], [7, 'no such kind'], ['bad: gone', 'state'],
        ]);
        assert.deepEqual(written.map((text) => text.replaceAll('\u202f', ' ')), [
            '52.3 µs', '1.00 ms', '400 ns', '12.3 s', '0',
            '1 h 6 min', '3 d 4 h', '59 s', '−1 min 1 s', '0.20/s', '813/s',
            '12,300/s', '1,234,567', '999 B', '2.30 MB/s', '12.5%',
            '<0.01%', '–', 'in use', '7', 'gone',
        ]);
    });
});

test('the page of a gateway that stops reports it, keeps its figures, and recovers with the gateway', options, async () => {
    const directory = await fetch(`http://${system.issuer}/.well-known/private-token-issuer-directory`);
    const keys = join(scratch.path, 'directory.json');
    await writeFile(keys, await directory.text());
    const gateway = (admin) => daemon('gateway', join(scratch.path, 'gateway.toml'), `
        listen = { address = "127.0.0.1:0", admin = "${admin}" }
        challenge = { issuer_name = "issuer.example", origin = "proxy.example" }
        store = { path = "${join(scratch.path, 'spent')}" }
        issuer = { keys = "${keys}" }
    `);
    let running = await gateway('127.0.0.1:0');
    try {
        await using(`http://${running.admin}/`, { mayDisconnect: true }, async (page) => {
            const connection = page.locator('#connection');
            const figures = await page.locator('main').innerText();
            const { admin } = running;
            const stopping = performance.now();
            await running.stop();
            assert.ok(performance.now() - stopping < 5_000, 'an open page holds up the end of the gateway');
            running = null;
            await eventually('the page notices', async () => /^reconnecting$/.test(await connection.textContent()));
            assert.ok(await page.evaluate(() => document.body.classList.contains('stale')));
            assert.match(await page.textContent('#state'), /^no contact since \d/);
            assert.match(await page.title(), /^○ no contact since .* · 127\.0\.0\.1:\d+$/);
            assert.ok((await page.locator('main').innerText()).length > figures.length / 2, 'the figures are gone');

            running = await gateway(admin);
            await eventually('the page is live again', async () => (await connection.textContent()) === 'live', 20_000);
            assert.ok(!(await page.evaluate(() => document.body.classList.contains('stale'))));
        });
    } finally {
        await running?.stop();
    }
});

test('the pictures in docs/images', { ...options, skip: missing || picturesUnwanted() }, async () => {
    await traffic.until(75);
    const pictures = {
        light: { colorScheme: 'light', viewport: { width: 1280, height: 900 } },
        dark: { colorScheme: 'dark', viewport: { width: 1280, height: 900 } },
        phone: { colorScheme: 'light', viewport: { width: 360, height: 780 }, deviceScaleFactor: 2, isMobile: true },
    };
    await mkdir(images, { recursive: true });
    for (const [name, context] of Object.entries(pictures)) {
        await using(`http://${system.admin}/`, context, async (page) => {
            await page.waitForTimeout(8_000); // so that the small lines have a shape
            const picture = await page.screenshot();
            assert.ok(picture.length < MAX_IMAGE, `${name}: ${picture.length} bytes`);
            await writeFile(join(images, `live-page-${name}.png`), picture);
        });
    }
});

function picturesUnwanted() {
    return process.env.UPDATE_SCREENSHOTS === '1' ? false : 'UPDATE_SCREENSHOTS=1 makes them';
}

/** Opens the page and looks: nothing on the console, nothing from elsewhere, nothing that the policy forbids. */
async function using(url, { mayDisconnect = false, ...context }, look) {
    const { origin } = new URL(url);
    const page = await browser.newPage(context);
    const complaints = [];
    page.on('pageerror', (error) => complaints.push(error.stack));
    page.on('console', (message) => {
        const lostStream = mayDisconnect && message.location().url === `${origin}/events`;
        if (['error', 'warning'].includes(message.type()) && !lostStream) complaints.push(message.text());
    });
    page.on('request', (request) => {
        const { protocol, origin: asked } = new URL(request.url());
        if (protocol !== 'data:' && asked !== origin) complaints.push(`a request to ${request.url()}`);
    });
    try {
        const response = await page.goto(url);
        assert.match(response.headers()['content-security-policy'] ?? '', /default-src 'none'/);
        await page.locator('section').first().waitFor();
        await look(page);
        assert.deepEqual(complaints, []);
    } finally {
        await page.context().close();
    }
}

/** Draws a snapshot, and no other after it: the server's next one would take its place before it was looked at. */
async function show(page, snapshot) {
    await page.evaluate((snapshot) => {
        receive = () => {};
        render(snapshot);
    }, snapshot);
}

/** Tunnels through the agent, some a second, until stopped. */
function keepBusy() {
    const began = performance.now();
    let running = true;
    const loop = (async () => {
        while (running) {
            const url = `http://127.0.0.1:${target.port}/`;
            const count = 2 + Math.round(2 * Math.random());
            const one = () => run('curl', ['-s', '-o', join(scratch.path, 'got'), '--noproxy', '', '-p', '-x', `http://${system.agent}`, url]);
            await Promise.all(Array.from({ length: count }, one));
            await new Promise((done) => setTimeout(done, 250));
        }
    })();
    return {
        until: (seconds) => new Promise((done) => setTimeout(done, seconds * 1000 - (performance.now() - began))),
        stop: () => ((running = false), loop),
    };
}

async function eventually(what, holds, within = 15_000) {
    const deadline = Date.now() + within;
    while (!(await holds())) {
        assert.ok(Date.now() < deadline, `not within ${within / 1000} s: ${what}`);
        await new Promise((done) => setTimeout(done, 50));
    }
}

/** The colours of the first heat map's plot that belong to its scale. */
async function colours(page) {
    const found = await page.evaluate(() => {
        const canvas = document.querySelector('canvas');
        const style = getComputedStyle(canvas);
        const scale = new Set(ramp(style.getPropertyValue('--heat').split(','), 48).map((rgb) => rgb.match(/\d+/g).join()));
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) {
            const rgb = data.slice(at, at + 3).join();
            if (data[at + 3] === 255 && scale.has(rgb)) seen.add(rgb);
        }
        return [...seen];
    });
    return new Set(found);
}

function bucket(readout) {
    return readout.replace(/^[\d:]+, (.*): .*$/, '$1');
}

/** Runs in the page: the text whose contrast to what is behind it is below 4.5 (WCAG 2.2, 1.4.3). */
function faint() {
    const luminance = (colour) => {
        const [r, g, b] = colour.match(/[\d.]+/g).map((part) => part / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const opaque = (node) => {
        const { backgroundColor } = getComputedStyle(node);
        return /^rgb\(/.test(backgroundColor) || !node.parentElement ? backgroundColor : opaque(node.parentElement);
    };
    const leaves = [...document.querySelectorAll('body *')].filter((node) =>
        [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()) && node.checkVisibility());
    return leaves.flatMap((node) => {
        const [one, other] = [getComputedStyle(node).color, opaque(node)].map(luminance);
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        return ratio < 4.5 ? [`${node.tagName}.${node.className} "${node.textContent.slice(0, 20)}": ${ratio.toFixed(2)}`] : [];
    });
}
