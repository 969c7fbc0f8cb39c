// Stream of snapshots, and start of the page: the last part of the live page's script; see page.js.

let source;
let heard = 0; // Time of the last snapshot, or of the opening of the stream.
let lost = null; // Time from which the figures are stale; null if they are not.

function connect() {
    source?.close();
    heard = performance.now();
    source = new EventSource('/events');
    source.addEventListener('history', ({ data }) => {
        const history = JSON.parse(data);
        heats.clear();
        for (const [id, columns] of Object.entries(history.heat)) heats.set(id, columns);
        lines.clear();
        for (const [id, known] of Object.entries(history.lines)) {
            for (const [label, values] of Object.entries(known)) lines.set(`${id} ${label}`, values);
        }
        lastAt = null;
    });
    source.addEventListener('snapshot', ({ data }) => receive(JSON.parse(data)));
    source.addEventListener('error', disconnected);
}

/** Takes a snapshot. Its history is recorded while the page is hidden, too; it is drawn once the page is visible. */
function receive(snapshot) {
    if (!snapshot.sections) return; // The server has just started.
    heard = performance.now();
    lost = null;
    latest = snapshot;
    remember(snapshot);
    document.body.classList.remove('stale');
    $('connection').dataset.is = 'live';
    setText($('connection'), 'live');
    if (!document.hidden) render(snapshot);
}

function remember({ at, sections }) {
    const missed = lastAt === null ? 0 : clamp(at - lastAt - 1, 0, HISTORY_SECONDS);
    const gap = missed > 1 ? new Array(missed).fill(null) : []; // A gap of one second may be rounding.
    lastAt = at;
    ticks += gap.length + 1;
    const add = (history, key, value) =>
        history.set(key, [...(history.get(key) ?? []), ...gap, value].slice(-HISTORY_SECONDS));
    for (const { id, heat, lines: values = [], tiles = [] } of sections) {
        if (heat) add(heats, id, heat.column);
        for (const { label, value } of values) add(lines, `${id} ${label}`, value);
        for (const { label, value, kind } of tiles) {
            if (!/rate$/.test(kind) || typeof value !== 'number') continue;
            const values = sparks.get(`${id} ${label}`) ?? [];
            sparks.set(`${id} ${label}`, [...values, value].slice(-SPARK_SECONDS));
        }
    }
}

function disconnected() {
    if (lost) return;
    lost = new Date();
    document.body.classList.add('stale');
    $('connection').dataset.is = 'lost';
    setText($('connection'), 'reconnecting');
    renderLoss();
}

/** Reconnects: the browser does so itself, but not after every error, and it does not detect a server that hangs. */
setInterval(() => {
    const silence = performance.now() - heard;
    if (silence > STALE) disconnected();
    if (silence > REOPEN || (source.readyState === EventSource.CLOSED && silence > STALE)) connect();
}, 1000);

document.addEventListener('visibilitychange', () => !document.hidden && latest && render(latest));
window.addEventListener('hashchange', readHash);
$('skip').addEventListener('click', (event) => {
    event.preventDefault();
    $('main').focus();
});
new ResizeObserver(([{ target }]) => {
    document.documentElement.style.setProperty('--header', `${target.offsetHeight}px`);
}).observe($('header'));
readHash();
connect();
