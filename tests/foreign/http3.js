// Pages over HTTP/3: a server (aioquic), and clients that reach it through a proxy by CONNECT-UDP (libcurl, aioquic).

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { environment, run } from './postern.js';

/** The Python that has the clients. */
export const clients = process.env.POSTERN_PYTHON_CLIENTS;
const hasQuic = clients && spawnSync(clients, ['-c', 'import aioquic']).status === 0;
export const skip = hasQuic ? false : 'there is no aioquic: scripts/tools/python-clients installs it';

/** Starts a server of one page; returns its URL and the function that ends it. */
export async function page3(text, { certificate, key }) {
    const program = join(import.meta.dirname, 'http3_page.py');
    const server = spawn(clients, [program, certificate, key, text], { env: environment, stdio: ['ignore', 'pipe', 'inherit'] });
    const [port] = await once(createInterface(server.stdout), 'line');
    return { url: `https://127.0.0.1:${port}/`, port, stop: () => server.kill() };
}

/** Fetches `url` through the proxy at this URL, over this version of HTTP to it, with a token or without one. */
export function fetch3(version, proxy, { ca, url, authorization = '' }) {
    return withToken(authorization, 'http3_by_proxy.py', [version, proxy, ca, url]);
}

/** The same by aioquic, through the proxy at this address. */
export function fetchByCapsules(proxy, { ca, url, authorization }) {
    return withToken(authorization, 'capsules_by_aioquic.py', [proxy, ca, url]);
}

/** Runs a program of this folder with the token on its standard input. */
function withToken(authorization, name, args) {
    const program = join(import.meta.dirname, name);
    return run('sh', ['-c', 'printf "%s\\n" "$0" | "$@"', authorization, clients, program, ...args]);
}
