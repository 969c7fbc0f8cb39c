// An hour of everything at a moderate rate: does anything leak, and is any token ever admitted twice?

import exec from 'k6/execution';
import { plan, options as base } from './lib/plan.js';
import { byAgent, gateway, present, race, SPENT } from './lib/connect.js';
import { garbage as sendGarbage } from './lib/garbage.js';
import { keep, pick } from './lib/admitted.js';
import { take } from './lib/tokens.js';
import { unexpected, wrong } from './lib/answers.js';
export { handleSummary } from './lib/plan.js';

export const options = base();

export function fresh() {
    present(take());
}

// One token twice at the same time, at different gateways if there are several: one presentation is admitted. Then a
// token that was spent seconds or up to an hour ago.
export function replays() {
    const token = take();
    const admitted = race(token, 2).filter((answer) => answer === 'admitted').length;
    if (admitted > 1) wrong(admitted - 1);
    if (admitted === 0) unexpected();
    const earlier = pick();
    if (earlier !== undefined) present(earlier, { kind: 'replay', daemon: gateway(1), allowed: SPENT });
    keep(token);
}

export function garbage() {
    sendGarbage(exec.scenario.iterationInTest, gateway());
}

// A tunnel that stays open for some seconds and carries bytes.
export function held() {
    present(take(), { kind: 'held', target: plan.holding });
}

export function throughAgent() {
    byAgent();
}
