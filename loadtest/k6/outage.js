// The store goes away and comes back: loadtest/run freezes every memcached for the second quarter. Meanwhile nothing
// may be admitted in doubt. What was refused for want of a verdict is presented again: it may be good or spent by now,
// but it is admitted once at most, which loadtest/run check sees.

import exec from 'k6/execution';
import { options as base } from './lib/plan.js';
import { gateway, present } from './lib/connect.js';
import { garbage } from './lib/garbage.js';
import { recall, remember } from './lib/memory.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

const undecided = []; // tokens of this virtual user that were answered 503

export default function () {
    const nth = exec.scenario.iterationInTest;
    const earlier = nth % 10 === 0 ? recall() : undefined;
    const again = nth % 10 === 5 ? undecided.shift() : undefined;
    if (nth % 100 === 33) {
        garbage(Math.floor(nth / 100), gateway(), ['busy']);
    } else if (earlier !== undefined) {
        present(earlier, { kind: 'replay', allowed: ['spent', 'busy'] });
    } else if (again !== undefined) {
        settle(again, present(again, { kind: 'again', allowed: ['admitted', 'spent', 'busy'] }));
    } else {
        const token = take();
        settle(token, present(token, { allowed: ['admitted', 'busy'] }));
    }
}

function settle(token, answer) {
    if (answer === 'admitted') remember(token);
    if (answer === 'busy') undecided.push(token);
}
