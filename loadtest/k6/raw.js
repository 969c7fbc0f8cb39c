// Tokens presented to the gateways directly, each once. The ramp runs this script too.

import { options as base } from './lib/plan.js';
import { present } from './lib/connect.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export default function () {
    present(take());
}
