// The dashboards of deploy/grafana, read by the types of Grafana's own SDK in Go: Grafana ignores what it does not know.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFile, readdir, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { environment, folder, run } from './postern.js';

const go = ['go', '/usr/local/go/bin/go'].find((name) => spawnSync(name, ['version']).status === 0);
const within = { timeout: 60_000, skip: go ? false : 'there is no Go' };
// Fetching and compiling the SDK for the first time takes a while on a busy machine.
const compiling = { timeout: 300_000 };
const dashboards = resolve(import.meta.dirname, '../../deploy/grafana/dashboards');

let scratch, check;
before(async () => {
    if (!go) return;
    scratch = await folder();
    check = join(scratch.path, 'check');
    const cwd = join(import.meta.dirname, 'dashboards');
    const built = await run(go, ['build', '-o', check, '.'], { env: environment, cwd, ...compiling });
    assert.equal(built.code, 0, built.stderr);
}, compiling);
after(() => scratch?.remove());

test('Grafana knows every field of the dashboards', within, async () => {
    const files = (await readdir(dashboards)).filter((name) => name.endsWith('.json'));
    const { code, stdout, stderr } = await run(check, files.map((name) => join(dashboards, name)));
    assert.equal(code, 0, stderr);
    assert.match(stdout, new RegExp(`^${files.length} dashboards, \\d\\d+ panels, 0 faults`));
});

for (const [fault, breakIt, complaint] of [
    ['a misspelled field', (board) => (board.refesh = '30s'), /unexpected field 'refesh'/],
    ['an option of another kind of panel', (board, panel) => (panel('timeseries').options.calculate = true), /unexpected field 'calculate'/],
    ['a query of a wrong type', (board, panel) => (panel('stat').targets[0].instant = 'yes'), /targets.*instant/s],
    ['an unknown unit', (board, panel) => (panel('stat').fieldConfig.defaults.unit = 'seconds'), /the unit seconds/],
    ['an unknown kind of panel', (board, panel) => (panel('stat').type = 'stats'), /the kind "stats"/],
]) {
    test(`${fault} is found`, within, async () => {
        const board = JSON.parse(await readFile(join(dashboards, 'gateway.json')));
        breakIt(board, (kind) => board.panels.find(({ type }) => type === kind));
        const broken = join(scratch.path, 'broken.json');
        await writeFile(broken, JSON.stringify(board));
        const { code, stderr } = await run(check, [broken]);
        assert.equal(code, 1);
        assert.match(stderr, complaint);
    });
}
