// What programs that fetch pages through the agent need: a system, and pages with and without TLS.

import { join } from 'node:path';
import { daemon, folder, up } from './postern.js';
import { certificate, page } from './targets.js';

/** Starts them; `ca` is the authority of the page over TLS, and `stop` ends all that was started. */
export async function stage() {
    const on = {};
    on.stop = async () => {
        await on.system?.stop();
        await on.secure?.close();
        await on.plain?.close();
        await on.scratch?.remove();
    };
    try {
        on.scratch = await folder();
        on.system = await up(join(on.scratch.path, 'up'));
        const files = await certificate(on.scratch.path);
        on.ca = files.ca;
        on.secure = await page('a page over TLS', files);
        on.plain = await page('a page without TLS');
        return on;
    } catch (error) {
        await on.stop();
        throw error;
    }
}

/** A gateway over TLS, at localhost, for tokens of that system's issuer; with these sections beside the usual ones. */
export async function secureGateway({ scratch, system }, name, more) {
    const [cert, key] = ['cert.pem', 'key.pem'].map((file) => join(scratch.path, file));
    const { address, ...running } = await daemon('gateway', join(scratch.path, `${name}.toml`), `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        tls = { certificate = "${cert}", key = "${key}" }
        issuer = { directory = "http://${system.issuer}/.well-known/private-token-issuer-directory" }
        challenge = { issuer_name = "issuer.example", origin = "localhost" }
        store = { path = "${join(scratch.path, `spent-${name}`)}" }
        ${more}
    `);
    return { ...running, address: address.replace('127.0.0.1', 'localhost') };
}
