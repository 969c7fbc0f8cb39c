// An hour of everything at a moderate rate: what grows that should not, and is any token ever admitted twice?

import exec from 'k6/execution';
import { plan, options as base } from './lib/plan.js';
import { byAgent, gateway, present, race, SPENT } from './lib/connect.js';
import { garbage as sendGarbage } from './lib/garbage.js';
import { recall, remember } from './lib/memory.js';
import { take } from './lib/tokens.js';
import { unexpected, wrong } from './lib/answers.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export function fresh() {
    present(take());
}

// One token twice at the same time, at different gateways where there are several: one is admitted. Then a token that
// was spent earlier, some seconds or nearly an hour ago.
export function replays() {
    const token = take();
    const admitted = race(token, 2).filter((answer) => answer === 'admitted').length;
    if (admitted > 1) wrong(admitted - 1);
    if (admitted === 0) unexpected();
    const earlier = recall();
    if (earlier !== undefined) present(earlier, { kind: 'replay', door: gateway(1), allowed: SPENT });
    remember(token);
}

export function garbage() {
    sendGarbage(exec.scenario.iterationInTest, gateway());
}

// A tunnel that stays open for some seconds with bytes in it.
export function held() {
    present(take(), { kind: 'held', target: plan.holding });
}

export function throughAgent() {
    byAgent();
}
