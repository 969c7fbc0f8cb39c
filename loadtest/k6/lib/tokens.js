// Tokens, each used by one iteration only.

import exec from 'k6/execution';
import { SharedArray } from 'k6/data';
import { plan } from './plan.js';

// One copy for all virtual users. A line is a whole value of Proxy-Authorization.
const values = new SharedArray('tokens', () => (plan.tokens ? open(plan.tokens).trim().split('\n') : []));

export function value(token) {
    return values[token];
}

// The index of this iteration's token, in the share of the phase that runs. Running out is an error of the plan, and
// using one a second time would look like a replay, so the whole run ends.
export function take() {
    const phase = exec.scenario.name;
    const share = plan.shares[phase];
    const nth = exec.scenario.iterationInTest;
    if (!share || nth >= share.count || share.first + nth >= values.length) {
        exec.test.abort(`out of tokens: phase ${phase} was given ${share ? share.count : 0}, and wants another`);
    }
    return share.first + nth;
}

// A good token that is never presented unchanged: garbage is made from it.
export function spare() {
    return values[plan.shares.spare.first];
}
