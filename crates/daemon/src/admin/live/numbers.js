'use strict';
// Formats of numbers: the first part of the live page's script; see page.js.

// Each format returns [text, unit].

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const SECONDS = [[1e-9, 'ns'], [1e-6, 'µs'], [1e-3, 'ms'], [1, 's']];
const BYTES = [[1, 'B'], [1e3, 'kB'], [1e6, 'MB'], [1e9, 'GB'], [1e12, 'TB']];

/** Returns three significant digits, never an exponent. */
function digits(value) {
    const rounded = Number(value.toPrecision(3));
    const size = Math.abs(rounded);
    return size >= 1000 ? grouped.format(rounded) : rounded.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
}

function scaled(value, units) {
    if (value === 0) return ['0', ''];
    const rounded = Math.abs(Number(value.toPrecision(3)));
    const [size, unit] = units.filter(([size]) => size <= rounded).at(-1) ?? units[0];
    return [unit === 'B' ? value.toFixed(0) : digits(value / size), `\u202f${unit}`];
}

/** Returns the two largest units: "3 d 4 h". */
function age(seconds) {
    const left = Math.floor(Math.abs(seconds));
    const parts = [[86_400, 'd'], [3_600, 'h'], [60, 'min'], [1, 's']].map(([size, unit], index, units) => [
        Math.floor(index === 0 ? left / size : (left % units[index - 1][0]) / size),
        unit,
    ]);
    const first = Math.max(0, parts.findIndex(([count]) => count > 0));
    const shown = left === 0 ? [[0, 's']] : parts.slice(first, first + 2).filter(([count]) => count > 0);
    return (seconds <= -1 ? '−' : '') + shown.map(([count, unit]) => `${count}\u202f${unit}`).join(' ');
}

const formats = {
    __proto__: null,
    count: (value) => [grouped.format(value), ''],
    rate: (value) => [digits(value), '/s'],
    bytes: (value) => scaled(value, BYTES),
    bytes_rate: (value) => scaled(value, BYTES).map((part, index) => (index === 1 ? `${part}/s` : part)),
    duration: (value) => (Math.abs(value) < 1000 ? scaled(value, SECONDS) : [age(value), '']),
    age: (value) => [age(value), ''],
    percent: (value) => [value > 0 && value < 1e-4 ? '<0.01' : digits(value * 100), '%'],
};

function format(value, kind) {
    if (value === null || value === undefined) return ['–', ''];
    if (kind === 'state') return [String(value).replace(/^(?:warn|bad): */s, ''), ''];
    return typeof value === 'number' && formats[kind] ? formats[kind](value) : [String(value), ''];
}

/** Returns a bucket's bound without needless zeros: "50 µs". */
function bound(seconds) {
    const [size, unit] = SECONDS.filter(([size]) => size <= seconds * 1.000001).at(-1) ?? SECONDS[0];
    return `${Number((seconds / size).toPrecision(3))}\u202f${unit}`;
}
