// Tunnels through the agent, as a browser opens them. The agent mints the tokens and spends them.

import { options as base } from './lib/plan.js';
import { byAgent } from './lib/connect.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export default function () {
    byAgent();
}
