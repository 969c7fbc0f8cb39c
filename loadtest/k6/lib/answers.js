// The classes of answers, and the ledger: one line for each answer.

import exec from 'k6/execution';
import { Counter, Rate } from 'k6/metrics';

const wrongAdmissions = new Counter('wrong_admissions');
const unexpectedAnswers = new Rate('unexpected_answers');

// What an answer means to a client. The status is the interface; only "spent" needs the reason, because it shares its
// status with every other refusal of a token.
export function classify(response) {
    const header = (name) => response.headers[name] || '';
    switch (response.status) {
        case 0:
            return 'no-answer';
        case 200:
            return 'admitted';
        case 407:
            if (!header('Proxy-Authenticate').startsWith('PrivateToken ')) return '407-without-challenge';
            return header('Proxy-Status').includes('token already spent') ? 'spent' : 'challenged';
        case 429:
        case 503:
            return header('Retry-After') ? 'busy' : 'busy-without-retry-after';
        default:
            return String(response.status);
    }
}

// Counts an answer and writes its line into the ledger; returns its class.
//
// loadtest/run check reads the line: time of the request (Unix ms), phase, kind, token (its index, - for none), daemon
// (g0, g1… or agent or issuer), status, class, ms to the answer. No token, no address.
export function record(response, { began, kind, token = '-', daemon, allowed }, classOf = classify) {
    const answer = classOf(response);
    console.log(
        `${began} ${exec.scenario.name} ${kind} ${token} ${daemon} ${response.status} ${answer} ` +
            response.timings.waiting.toFixed(3),
    );
    unexpectedAnswers.add(!allowed.includes(answer));
    if (answer === 'admitted' && !allowed.includes('admitted')) wrongAdmissions.add(1);
    return answer;
}

// For faults that only a comparison of several answers shows.
export function wrong(count) {
    wrongAdmissions.add(count);
}

export function unexpected() {
    unexpectedAnswers.add(true);
}
