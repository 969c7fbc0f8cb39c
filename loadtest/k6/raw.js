// Tokens presented to the gateways themselves, each once. What the ramp runs, too.

import { options as base } from './lib/plan.js';
import { present } from './lib/connect.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export default function () {
    present(take());
}
