// What programs that fetch pages through the agent need: a system, and pages with and without TLS.

import { join } from 'node:path';
import { folder, up } from './postern.js';
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
