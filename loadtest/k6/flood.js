// More token requests at once than the issuer's queue holds, while tunnels open: the issuer sheds the excess with
// Retry-After, and the gateways are not affected.

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
