// Headless Chromium through the agent.

import assert from 'node:assert/strict';
import { accessSync, constants } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { networkInterfaces } from 'node:os';
import { delimiter, join } from 'node:path';
import { after, before, test } from 'node:test';
import { environment, folder, run, up } from './postern.js';
import { certificate, page } from './targets.js';

const chromium = ['chromium', 'chromium-browser', 'google-chrome'].find(isOnPath);
const options = { timeout: 100_000, skip: chromium ? false : 'there is no chromium on PATH' };
const address = Object.values(networkInterfaces())
    .flat()
    .find(({ family, internal }) => family === 'IPv4' && !internal)?.address;
const onNetwork = address ? options : { ...options, skip: 'this machine has no address but loopback' };

let scratch, system, secure, plain;
before(async () => {
    scratch = await folder();
    system = await up(join(scratch.path, 'up'));
    secure = await page('a page over TLS', await certificate(scratch.path));
    plain = await page('a page without TLS');
});
after(async () => {
    await system?.stop();
    await secure?.close();
    await plain?.close();
    await scratch?.remove();
});

test('an https page, the agent as HTTP proxy', options, () => loads('http', secure));
test('an https page, the agent as SOCKS5 proxy', options, () => loads('socks5', secure));
test('a plain http page, the agent as HTTP proxy', options, () => loads('http', plain));

// The bypass of loopback cannot be switched off for a PAC file, so the page has another address of this machine.
test('a plain http page, by the agent\'s PAC file', onNetwork, async () => {
    const site = await page('a page by PAC', undefined, address);
    try {
        await shows(site, [`--proxy-pac-url=http://${system.agent}/proxy.pac`]);
    } finally {
        await site.close();
    }
});

async function loads(proxy, site) {
    const bypass = '--proxy-bypass-list=<-loopback>'; // or pages on loopback are fetched past the proxy
    await shows(site, [`--proxy-server=${proxy}://${system.agent}`, bypass]);
}

async function shows(site, settings) {
    const [tunnels, connections] = [(await system.metrics()).opened, site.connections()];
    const profile = await mkdtemp(join(scratch.path, 'profile-'));
    const { stdout, stderr } = await run(
        chromium,
        [
            '--headless=new',
            '--no-sandbox', // CI runs as root
            ...settings,
            '--ignore-certificate-errors',
            '--disable-gpu',
            '--disable-quic',
            '--disable-dev-shm-usage',
            '--disable-background-networking',
            '--disable-component-update',
            '--disable-sync',
            '--no-first-run',
            `--user-data-dir=${profile}`,
            '--dump-dom',
            site.url,
        ],
        { timeout: 90_000, env: { ...environment, HOME: profile } },
    );
    assert.ok(stdout.includes(`<p>${site.text}</p>`), `the page is not in the DOM:\n${stdout}\n${stderr}`);
    // The page alone proves nothing: a browser that ignores its proxy shows it, too.
    const reached = site.connections() - connections;
    const opened = (await system.metrics()).opened - tunnels;
    assert.ok(reached >= 1 && opened >= reached, `${reached} connections came, ${opened} through the gateway`);
}

function isOnPath(name) {
    return (process.env.PATH ?? '').split(delimiter).some((folder) => {
        try {
            accessSync(join(folder, name), constants.X_OK);
            return true;
        } catch {
            return false;
        }
    });
}
