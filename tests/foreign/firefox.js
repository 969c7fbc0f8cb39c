// The Firefox that is installed, with an extension, driven by its own protocol (Marionette).

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { join } from 'node:path';
import { environment } from './postern.js';
import { free } from './proxies.js';

const has = spawnSync('firefox-esr', ['--version'], { env: environment }).status === 0;
/** Why tests with Firefox are skipped, or false. */
export const skip = has ? false : 'there is no firefox-esr (apt-get install firefox-esr)';

/** Starts Firefox with a profile of its own in `folder`, and with this extension. */
export async function firefox(folder, extension) {
    const [profile, port] = [join(folder, 'profile'), await free()];
    await mkdir(profile);
    const { id } = JSON.parse(await readFile(join(extension, 'manifest.json'))).browser_specific_settings.gecko;
    const uuid = crypto.randomUUID();
    const settings = {
        'marionette.port': port,
        'extensions.webextensions.uuids': JSON.stringify({ [id]: uuid }),
        'network.proxy.allow_hijacking_localhost': true, // a target on this machine goes through the proxy, too
        // What Firefox loads by itself would take tokens.
        'app.normandy.enabled': false,
        'app.update.disabledForTesting': true,
        'browser.newtabpage.enabled': false,
        'browser.region.update.enabled': false,
        'browser.safebrowsing.downloads.remote.enabled': false,
        'browser.safebrowsing.malware.enabled': false,
        'browser.safebrowsing.phishing.enabled': false,
        'browser.search.update': false,
        'browser.startup.page': 0,
        'datareporting.policy.dataSubmissionEnabled': false,
        'extensions.getAddons.cache.enabled': false,
        'extensions.systemAddon.update.enabled': false,
        'extensions.update.enabled': false,
        'network.captive-portal-service.enabled': false,
        'network.connectivity-service.enabled': false,
        'network.prefetch-next': false,
        'network.http.speculative-parallel-limit': 0,
        'services.settings.server': 'data:,#remote-settings-dummy/v1',
    };
    const line = ([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});\n`;
    await writeFile(join(profile, 'user.js'), Object.entries(settings).map(line).join(''));
    const args = ['--headless', '--marionette', '--remote-allow-system-access', '--no-remote', '--profile', profile];
    const child = spawn('firefox-esr', args, { env: { ...environment, HOME: folder }, stdio: 'ignore' });
    const exited = once(child, 'exit');
    const stop = async () => {
        child.kill();
        await exited;
    };
    try {
        const command = await marionette(port);
        await command('WebDriver:NewSession', { acceptInsecureCerts: true });
        await command('Addon:Install', { path: extension, temporary: true });
        /** Opens a page of the extension in another tab; commands are for this one then. */
        const open = async (page) => {
            await command('Marionette:SetContext', { value: 'chrome' });
            const script = `
                const [url, done] = arguments;
                const triggeringPrincipal = Services.scriptSecurityManager.getSystemPrincipal();
                const tab = gBrowser.addTab(url, { triggeringPrincipal });
                tab.linkedBrowser.addEventListener('pageshow', () => done(), { once: true });
                setTimeout(done, 2000);
            `;
            await command('WebDriver:ExecuteAsyncScript', { script, args: [`moz-extension://${uuid}/${page}`] });
            await command('Marionette:SetContext', { value: 'content' });
            const handles = await command('WebDriver:GetWindowHandles');
            await command('WebDriver:SwitchToWindow', { handle: handles.at(-1) });
        };
        return { command, stop, open, uuid };
    } catch (error) {
        await stop();
        throw error;
    }
}

/** Returns the function that runs a command; a message is its length, a colon and JSON. */
async function marionette(port) {
    const socket = await connected(port);
    let [unread, last] = [Buffer.alloc(0), 0];
    const message = async () => {
        for (;;) {
            const colon = unread.indexOf(':');
            const end = colon + 1 + Number(unread.subarray(0, colon));
            if (colon > 0 && unread.length >= end) {
                const found = JSON.parse(unread.subarray(colon + 1, end));
                unread = unread.subarray(end);
                return found;
            }
            const [more] = await once(socket, 'data');
            unread = Buffer.concat([unread, more]);
        }
    };
    await message(); // its greeting
    return async (name, parameters = {}) => {
        const text = JSON.stringify([0, (last += 1), name, parameters]);
        socket.write(`${Buffer.byteLength(text)}:${text}`);
        const [, , error, result] = await message();
        if (error) throw new Error(`${name}: ${error.error}: ${error.message}`);
        return result?.value ?? result;
    };
}

async function connected(port) {
    const deadline = Date.now() + 60_000;
    for (;;) {
        const socket = net.connect(port, '127.0.0.1');
        try {
            await once(socket, 'connect');
            return socket;
        } catch (error) {
            if (Date.now() > deadline) throw error;
            await new Promise((done) => setTimeout(done, 100));
        }
    }
}
