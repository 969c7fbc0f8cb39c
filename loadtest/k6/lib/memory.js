// Tokens that this virtual user has seen admitted, to present them again later. Bounded: what falls out is chosen by
// chance, so tokens of any age stay.

const MOST = 500;
const tokens = [];
let seen = 0;

export function remember(token) {
    seen += 1;
    if (tokens.length < MOST) tokens.push(token);
    else if (Math.random() < MOST / seen) tokens[Math.floor(Math.random() * MOST)] = token;
}

// One of them, or undefined while there is none.
export function recall() {
    return tokens[Math.floor(Math.random() * tokens.length)];
}
