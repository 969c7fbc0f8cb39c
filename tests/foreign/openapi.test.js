// The issuer's API description against a running issuer: schemathesis makes requests of it and judges the answers by it.

import { MediaType, TokenChallenge, genericBatched, privateVerif, publicVerif } from '@cloudflare/privacypass-ts';
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { apply, daemon, environment, folder, run } from './postern.js';

/** Where the issuer takes requests: not the default. */
const REQUESTS = '/tokens';
const AMORTIZED_REQUEST = 'application/private-token-amortized-batch-request';
const python = process.env.POSTERN_PYTHON_CLIENTS;
const schemathesis = python && join(dirname(python), 'schemathesis');
const skip =
    schemathesis && existsSync(schemathesis) ? false : 'there is no schemathesis: scripts/tools/python-clients installs it';
const within = { timeout: 60_000, skip };

let scratch, issuer, keys, description;
before(async () => {
    if (skip) return;
    scratch = await folder();
    keys = { rich: randomBytes(32).toString('hex'), poor: randomBytes(32).toString('hex') };
    const account = (name, quota) => `
        [[accounts]]
        name = "${name}"
        key_sha256 = "${createHash('sha256').update(keys[name]).digest('hex')}"
        quota = "${quota}"
    `;
    const config = join(scratch.path, 'issuer.toml');
    issuer = await daemon('issuer', config, `
        listen = { address = "127.0.0.1:0", admin = "127.0.0.1:0" }
        keys = { directory = "${join(scratch.path, 'keys')}", types = [2, 1] }
        directory = { issuer_request_uri = "${REQUESTS}" }
    `);
    await apply(config, account('rich', '1000000/36500d') + account('poor', '1/36500d'));
    description = await (await fetch(`http://${issuer.address}/openapi.json`)).json();
    await writeFile(file('requests.json'), JSON.stringify(await requests()));
});
after(async () => {
    await issuer?.stop();
    await scratch?.remove();
});

test('whoever sends good requests gets what is described', within, async () => {
    const counted = await tested(description, { bodies: 'good', key: keys.rich });
    const ofRequests = ['issued', 'partial', 'unauthorized', 'bad_media_type', 'bad_request'];
    const ofDocuments = ['directory', 'description', 'not_modified'];
    for (const outcome of [...ofRequests, ...ofDocuments]) assert.ok(counted(outcome) > 0, outcome);
});

test('and whoever sends damaged ones', within, async () => {
    const counted = await tested(description, damaged());
    assert.ok(counted('bad_token_request') > 20, `${counted('bad_token_request')} refused`);
});

test('and whoever has no key, or no quota left', within, async () => {
    const noKey = await tested(description, { bodies: 'good', only: REQUESTS });
    assert.ok(noKey('unauthorized') > 0 && noKey('issued') === 0);
    const noQuota = await tested(description, { bodies: 'good', only: REQUESTS, key: keys.poor });
    assert.ok(noQuota('quota_spent') > 0 && noQuota('issued') <= 1);
});

test('a status that the description lacks is found', within, async () => {
    const lacking = structuredClone(description);
    delete lacking.paths[REQUESTS].post.responses['422'];
    const { code, stdout } = await judged(lacking, damaged());
    assert.equal(code, 1, stdout);
    assert.match(stdout, /Undocumented status code\s+Received: 422/);
});

/** The description cannot say which bytes are a request, so that schemathesis cannot expect them to be accepted. */
function damaged() {
    return { bodies: 'damaged', key: keys.rich, only: REQUESTS, without: 'positive_data_acceptance' };
}

function file(name) {
    return join(scratch.path, name);
}

/** Runs schemathesis, which must find nothing; returns how many answers the issuer has counted meanwhile, by outcome. */
async function tested(described, options) {
    const before = await issuer.metrics();
    const { code, stdout, stderr } = await judged(described, options);
    assert.equal(code, 0, stdout + stderr);
    const after = await issuer.metrics();
    const series = (outcome) => `postern_issuer_requests_total{outcome="${outcome}"}`;
    return (outcome) => after.value(series(outcome)) - before.value(series(outcome));
}

async function judged(described, { bodies, key, only, without }) {
    await writeFile(file('openapi.json'), JSON.stringify(described));
    const args = ['run', file('openapi.json'), '--url', `http://${issuer.address}`];
    args.push('--checks', 'all', ...(without ? ['--exclude-checks', without] : []));
    args.push('--seed', '1', '--generation-database', 'none', '--max-examples', '40');
    args.push('--phases', 'examples,coverage,fuzzing', '--continue-on-failure', '--no-color');
    if (only) args.push('--include-path', only);
    if (key) args.push('--header', `Authorization: Bearer ${key}`);
    const hooks = { SCHEMATHESIS_HOOKS: 'openapi_bodies', PYTHONPATH: import.meta.dirname, PYTHONDONTWRITEBYTECODE: '1' };
    const made = { POSTERN_REQUESTS: file('requests.json'), POSTERN_BODIES: bodies };
    return run(schemathesis, args, { env: { ...environment, ...hooks, ...made }, cwd: scratch.path });
}

/** Requests that the issuer answers with tokens, by media type, in base64; for one of a batch there is none. */
async function requests() {
    const answer = await fetch(`http://${issuer.address}/.well-known/private-token-issuer-directory`);
    const listed = (await answer.json())['token-keys'];
    const keyOf = (type) => Buffer.from(listed.find((key) => key['token-type'] === type)['token-key'], 'base64url');
    const challenge = (type) => new TokenChallenge(type, 'issuer.example', new Uint8Array(), ['proxy.example']);
    const publicly = () => new publicVerif.Client(publicVerif.BlindRSAMode.PSS).createTokenRequest(challenge(2), keyOf(2));
    const privately = () => new privateVerif.Client().createTokenRequest(challenge(1), keyOf(1));
    const [two, one, other] = [await publicly(), await privately(), await privately()];
    const batch = (requests) =>
        new genericBatched.Client().createTokenRequest(requests.map((of) => new genericBatched.TokenRequest(of)));
    const base64 = (bytes) => Buffer.from(bytes).toString('base64');
    const generic = base64(batch([two, one]).serialize());
    const strange = await privately();
    strange.truncatedTokenKeyId ^= 1;
    const partly = base64(batch([two, strange]).serialize());
    // token_type and truncated_token_key_id once, then the elements behind their length in bytes.
    const [first, second] = [one.serialize(), other.serialize()];
    const elements = [...first.slice(3), ...second.slice(3)];
    const amortized = base64([...first.slice(0, 3), 0x40, elements.length, ...elements]);
    return {
        [MediaType.PRIVATE_TOKEN_REQUEST]: [base64(two.serialize()), base64(first)],
        [MediaType.ARBITRARY_BATCHED_TOKEN_REQUEST]: [generic, partly],
        [AMORTIZED_REQUEST]: [amortized],
    };
}
