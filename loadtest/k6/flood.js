// More token requests at once than the issuer has places for, while tunnels go on: the issuer sheds what is too much,
// and says when to come back; the gateways do not feel it.

import { plan, options as base } from './lib/plan.js';
import { present } from './lib/connect.js';
import { fetchKey, issueMany } from './lib/issuance.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = { ...base(), batch: plan.burst, batchPerHost: plan.burst };

export function setup() {
    return fetchKey();
}

export function fresh() {
    present(take());
}

export function burst(key) {
    issueMany(key, plan.burst, ['issued', 'busy']);
}
