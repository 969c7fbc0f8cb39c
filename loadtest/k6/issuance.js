// Token requests to the issuer, as many clients make them.

import { options as base } from './lib/plan.js';
import { fetchKey, issue } from './lib/issuance.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export function setup() {
    return fetchKey();
}

export default function (key) {
    issue(key);
}
