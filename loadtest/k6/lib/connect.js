// CONNECT by k6. It has no proxy setting that could carry a token, but it sends a right CONNECT when asked for the
// method: the Host field becomes the request's target, and the URL, without a slash at its end, says where to send it.
// k6 reads an answer to its end, so the target has to close; `timings.waiting` is the time to the gateway's answer.

import exec from 'k6/execution';
import http from 'k6/http';
import { plan } from './plan.js';
import { record } from './answers.js';
import { value } from './tokens.js';

export const ADMITTED = ['admitted'];
export const SPENT = ['spent'];

// Gateways in turn. `shift` moves a second presentation to another one.
export function gateway(shift = 0) {
    const at = (exec.scenario.iterationInTest + shift) % plan.gateways.length;
    return { name: `g${at}`, url: plan.gateways[at] };
}

export const agent = { name: 'agent', url: plan.agent };

// A request for http.batch or http.request.
export function request(door, headers, target = plan.target) {
    const params = { headers: { Host: target, ...headers }, timeout: '60s' };
    return { method: 'CONNECT', url: door.url, body: null, params };
}

export function send({ method, url, body, params }) {
    return http.request(method, url, body, params);
}

// Presents a token at a gateway. `allowed` are the classes of answers that are right.
export function present(token, { kind = 'fresh', door = gateway(), allowed = ADMITTED, target } = {}) {
    const began = Date.now();
    const response = send(request(door, { 'Proxy-Authorization': value(token) }, target));
    return record(response, { began, kind, token, door: door.name, allowed });
}

// Presents one token several times at once, at gateways in turn.
export function race(token, times, kind = 'race', allowed = ['admitted', 'spent']) {
    const doors = Array.from({ length: times }, (_, nth) => gateway(nth));
    const began = Date.now();
    const responses = http.batch(doors.map((door) => request(door, { 'Proxy-Authorization': value(token) })));
    return responses.map((response, nth) => record(response, { began, kind, token, door: doors[nth].name, allowed }));
}

// A tunnel by the agent, which pays with a token of its own.
export function byAgent(target) {
    const began = Date.now();
    return record(send(request(agent, {}, target)), { began, kind: 'agent', door: agent.name, allowed: ADMITTED });
}
