// Tunnels through the agent: the path of a browser. The agent gets the tokens and pays with them.

import { options as base } from './lib/plan.js';
import { byAgent } from './lib/connect.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export default function () {
    byAgent();
}
