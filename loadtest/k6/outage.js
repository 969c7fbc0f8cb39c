// An outage of the store: loadtest/run freezes every memcached for the second quarter. Meanwhile no token may be
// admitted without a verdict. A token that was refused without one is presented again: it may be good or spent, but it
// is admitted once at most, which loadtest/run check verifies.

import exec from 'k6/execution';
import { options as base } from './lib/plan.js';
import { gateway, present } from './lib/connect.js';
import { garbage } from './lib/garbage.js';
import { keep, pick } from './lib/admitted.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

const undecided = []; // tokens of this virtual user that were answered 503

export default function () {
    const nth = exec.scenario.iterationInTest;
    const earlier = nth % 10 === 0 ? pick() : undefined;
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
    if (answer === 'admitted') keep(token);
    if (answer === 'busy') undecided.push(token);
}
