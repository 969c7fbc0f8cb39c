// Tokens of this virtual user that were admitted, to present them again later. Bounded: the one to drop is random, so
// tokens of any age stay.

const MOST = 500;
const tokens = [];
let seen = 0;

export function keep(token) {
    seen += 1;
    if (tokens.length < MOST) tokens.push(token);
    else if (Math.random() < MOST / seen) tokens[Math.floor(Math.random() * MOST)] = token;
}

// A random one of them, or undefined while there is none.
export function pick() {
    return tokens[Math.floor(Math.random() * tokens.length)];
}
