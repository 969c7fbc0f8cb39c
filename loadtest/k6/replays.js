// Each token is presented several times: at once at all gateways, and once more at each afterwards. One gets a tunnel.

import { plan, options as base } from './lib/plan.js';
import { gateway, present, race, SPENT } from './lib/connect.js';
import { take } from './lib/tokens.js';
import { unexpected, wrong } from './lib/answers.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

// Presentations of a token at the same time, at least two at each gateway.
const AT_ONCE = Math.max(4, 2 * plan.gateways.length);

export default function () {
    const token = take();
    const admitted = race(token, AT_ONCE).filter((answer) => answer === 'admitted').length;
    if (admitted > 1) wrong(admitted - 1);
    if (admitted === 0) unexpected();
    for (let nth = 0; nth < plan.gateways.length; nth += 1) {
        present(token, { kind: 'replay', daemon: gateway(nth), allowed: SPENT });
    }
}
