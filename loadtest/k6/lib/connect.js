// CONNECT by k6. Its proxy setting cannot carry a token, but it sends a correct CONNECT for that method: the Host field
// becomes the request's target, and the URL, without a slash at its end, is the gateway's address. k6 reads an answer
// to its end, so the target has to close; `timings.waiting` is the time to the gateway's answer.

import exec from 'k6/execution';
import http from 'k6/http';
import { plan } from './plan.js';
import { record } from './answers.js';
import { value } from './tokens.js';

export const ADMITTED = ['admitted'];
export const SPENT = ['spent'];

// The gateways in turn. `shift` moves a second presentation to another one.
export function gateway(shift = 0) {
    const at = (exec.scenario.iterationInTest + shift) % plan.gateways.length;
    return { name: `g${at}`, url: plan.gateways[at] };
}

export const agent = { name: 'agent', url: plan.agent };

// A request for http.batch or http.request.
export function request(daemon, headers, target = plan.target) {
    const params = { headers: { Host: target, ...headers }, timeout: '60s' };
    return { method: 'CONNECT', url: daemon.url, body: null, params };
}

export function send({ method, url, body, params }) {
    return http.request(method, url, body, params);
}

// Presents a token at a gateway. `allowed` are the expected classes of answers.
export function present(token, { kind = 'fresh', daemon = gateway(), allowed = ADMITTED, target } = {}) {
    const began = Date.now();
    const response = send(request(daemon, { 'Proxy-Authorization': value(token) }, target));
    return record(response, { began, kind, token, daemon: daemon.name, allowed });
}

// Presents one token several times at once, at gateways in turn.
export function race(token, times, kind = 'race', allowed = ['admitted', 'spent']) {
    const daemons = Array.from({ length: times }, (_, nth) => gateway(nth));
    const began = Date.now();
    const responses = http.batch(daemons.map((daemon) => request(daemon, { 'Proxy-Authorization': value(token) })));
    return responses.map((response, nth) => record(response, { began, kind, token, daemon: daemons[nth].name, allowed }));
}

// A tunnel through the agent, which spends one of its own tokens.
export function byAgent(target) {
    const began = Date.now();
    return record(send(request(agent, {}, target)), { began, kind: 'agent', daemon: agent.name, allowed: ADMITTED });
}
