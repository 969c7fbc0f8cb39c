// Ordinary traffic of a gateway: of a hundred presentations one is a replay, and one is garbage.

import exec from 'k6/execution';
import { options as base } from './lib/plan.js';
import { gateway, present, SPENT } from './lib/connect.js';
import { garbage } from './lib/garbage.js';
import { keep, pick } from './lib/admitted.js';
import { take } from './lib/tokens.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export default function () {
    const nth = exec.scenario.iterationInTest;
    if (nth % 100 === 33) {
        garbage(Math.floor(nth / 100), gateway());
        return;
    }
    const earlier = nth % 100 === 66 ? pick() : undefined;
    if (earlier !== undefined) {
        present(earlier, { kind: 'replay', allowed: SPENT });
        return;
    }
    const token = take();
    if (present(token) === 'admitted') keep(token);
}
