// Postern's processes: started on free loopback ports with data of their own, and stopped.

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { accessSync, constants } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

const root = resolve(import.meta.dirname, '../..');
const built = join(resolve(root, process.env.CARGO_TARGET_DIR ?? 'target'), 'release', 'postern');
const binary = resolve(root, process.env.POSTERN_BINARY ?? built);
try {
    accessSync(binary, constants.X_OK);
} catch {
    throw new Error(`there is no ${binary}: run "cargo build --release --locked" first, or name one in POSTERN_BINARY`);
}

/**
 * The environment without what would change a program's behaviour behind a test's back: a proxy variable sends
 * clients elsewhere, or past the proxy under test.
 */
export const environment = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/_proxy$|^POSTERN_|^RUST_LOG$/i.test(name)),
);

const children = new Set();
process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

/** Runs a program to its end; never throws for its exit code. */
export async function run(program, args, options = {}) {
    try {
        const { stdout, stderr } = await promisify(execFile)(program, args, {
            env: environment,
            timeout: 50_000,
            maxBuffer: 16 << 20,
            ...options,
        });
        return { code: 0, stdout, stderr };
    } catch (error) {
        if (error.stdout === undefined || error.code === 'ENOENT') throw error;
        return { code: error.code ?? error.signal, stdout: error.stdout, stderr: error.stderr };
    }
}

/** A folder for one test file; `remove` takes it away. */
export async function folder() {
    const path = await mkdtemp(join(tmpdir(), 'postern-foreign-'));
    return { path, remove: () => rm(path, { recursive: true, force: true }) };
}

/** `postern up` in `data`, once it is ready. Targets on loopback are allowed. */
export async function up(data) {
    const any = '127.0.0.1:0';
    const args = ['--client', any, '--gateway', any, '--issuer', any, '--admin', any];
    const found = await start(['up', '--data', data, '--open-egress', ...args], {
        agent: /^ +agent +http:\/\/(\S+)/,
        gateway: /^ +gateway +http:\/\/(\S+)/,
        issuer: /^ +issuer +http:\/\/(\S+)/,
        admin: /^ +admin +http:\/\/([^/]+)/,
    });
    return { ...found, metrics: () => metrics(found.admin) };
}

/** `postern gateway` or `postern issuer` with this configuration, once it is ready. */
export async function daemon(kind, file, toml) {
    await writeFile(file, toml);
    const found = await start([kind, '--config', file], {
        address: new RegExp(`the ${kind} listens on (\\S+)`),
        admin: /the admin page listens on (\S+)/,
    });
    await ready(found.admin);
    return { ...found, metrics: () => metrics(found.admin) };
}

/** Makes the accounts of the issuer with this configuration what `toml` declares. */
export async function apply(config, toml) {
    const file = join(dirname(config), 'accounts.toml');
    await writeFile(file, toml);
    const { code, stderr } = await run(binary, ['issuer', 'account', 'apply', file, '--config', config]);
    if (code !== 0) throw new Error(`postern issuer account apply: ${stderr}`);
}

/** `postern token mint`: the values of Proxy-Authorization, one a token. With `ca` the gateway is reached over TLS. */
export async function mint({ issuer, gateway, count = 1, ca }) {
    const urls = ['--issuer', `http://${issuer}`, '--gateway', `${ca ? 'https' : 'http'}://${gateway}`];
    const args = [...urls, '--count', String(count), ...(ca ? ['--ca', ca] : [])];
    const { code, stdout, stderr } = await run(binary, ['token', 'mint', ...args]);
    if (code !== 0) throw new Error(`postern token mint: ${stderr}`);
    return stdout.trimEnd().split('\n');
}

/** Starts the binary and waits until it has printed all of `wanted`: names to patterns with one group. */
async function start(args, wanted) {
    const child = spawn(binary, args, { env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
    children.add(child);
    const exited = once(child, 'exit').finally(() => children.delete(child));
    const said = [];
    const found = {};
    const complete = new Promise((done) => {
        const read = (line) => {
            said.push(line);
            for (const [name, pattern] of Object.entries(wanted)) found[name] ??= pattern.exec(line)?.[1];
            if (Object.keys(wanted).every((name) => found[name])) done();
        };
        createInterface({ input: child.stdout }).on('line', read);
        createInterface({ input: child.stderr }).on('line', read);
    });
    const failed = async (why) => {
        child.kill('SIGKILL');
        throw new Error(`postern ${args[0]} ${why}:\n${said.join('\n')}`);
    };
    let listens = false; // the race leaves its losers running: the timer must not end a process that is well
    await Promise.race([
        complete.then(() => (listens = true)),
        exited.then(([code]) => listens || failed(`ended with ${code}`)),
        expired(20_000).then(() => listens || failed('did not print its address')),
    ]);
    /** Stops it as an operator would; it must end with exit code 0. */
    const stop = async () => {
        child.kill('SIGTERM');
        const [code] = await exited;
        if (code !== 0) throw new Error(`postern ${args[0]} ended with ${code}:\n${said.join('\n')}`);
    };
    return { ...found, stop };
}

async function ready(admin) {
    const deadline = Date.now() + 20_000;
    for (;;) {
        const answer = await fetch(`http://${admin}/readyz`);
        const reasons = await answer.text();
        if (answer.ok) return;
        if (Date.now() > deadline) throw new Error(`not ready: ${reasons}`);
        await expired(20);
    }
}

/** The metrics of an admin page. */
async function metrics(admin) {
    const text = await (await fetch(`http://${admin}/metrics`)).text();
    const value = (series) => Number(text.split('\n').find((line) => line.startsWith(`${series} `))?.split(' ')[1] ?? 0);
    return { opened: value('postern_requests_total{outcome="opened"}'), value };
}

function expired(milliseconds) {
    return new Promise((done) => setTimeout(done, milliseconds).unref());
}
