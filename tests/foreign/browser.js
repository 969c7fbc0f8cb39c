// The Chromium that is installed, driven by playwright-core.

import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { chromium } from 'playwright-core';
import { environment } from './postern.js';

const executablePath = (process.env.PATH ?? '')
    .split(delimiter)
    .flatMap((folder) => ['chromium', 'chromium-browser', 'google-chrome'].map((name) => join(folder, name)))
    .find(isExecutable);

/** Why tests with a browser are skipped, or false. */
export const missing = executablePath ? false : 'there is no chromium on PATH';

/** A headless browser, without a proxy unless other arguments say so. */
export function browser(args = ['--no-proxy-server']) {
    return chromium.launch({
        executablePath,
        headless: true,
        args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', ...args], // CI runs as root
        env: environment,
    });
}

function isExecutable(path) {
    try {
        accessSync(path, constants.X_OK);
        return true;
    } catch {
        return false;
    }
}
