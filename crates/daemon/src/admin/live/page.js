// The live page. One script is made of numbers.js, this file, heat.js, lines.js and stream.js.
// Snapshots come from /events and are drawn once a second into nodes that are kept.
// Text from the server enters the document only through textContent.

const HISTORY_SECONDS = 300; // Length of heat maps and lines.
const SPARK_SECONDS = 90;
const STALE = 4_000; // Milliseconds without a snapshot until the figures are shown as stale.
const REOPEN = 10_000; // Milliseconds without a snapshot until the stream is reopened.

const $ = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const clock = (date) => date.toLocaleTimeString('en-GB');

let latest = null; // The last snapshot.
let lastAt = null; // Time of the last snapshot; null after a history.
let ticks = 0; // Number of the last snapshot since the page was opened, missed ones included.
let chosen = null; // Selected window of the latency tables.
const heats = new Map(); // Columns of the sections' heat maps, oldest first; null if unknown.
const sparks = new Map(); // Last values of the tiles with a line.

// ---- Nodes ----

function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
}

function svg(tag, attributes = {}) {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
}

function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

/** Makes `parent` hold one node per item, in order. `create` makes a node with `update(item)`; nodes are kept by key. */
function each(parent, items, keyOf, create) {
    const before = parent.kept ?? new Map();
    const kept = new Map();
    items.forEach((item, index) => {
        let key = String(keyOf(item, index));
        while (kept.has(key)) key += '\u0000';
        const node = before.get(key) ?? create(item);
        kept.set(key, node);
        if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
        node.update(item);
    });
    while (parent.children.length > items.length) parent.lastElementChild.remove();
    parent.kept = kept;
}

/** Makes a cell or a tile's value: a number and its unit. The style sheet adds bars and symbols. */
function valueNode(tag, attributes) {
    const [value, unit] = [make('span'), make('span', { class: 'unit' })];
    const node = make(tag, attributes, value, unit);
    node.update = (content, kind) => {
        const name = kind in formats || kind === 'state' || kind === 'spread' ? kind : 'text';
        if (node.className !== name) node.className = name;
        if (kind === 'spread') return spread(node, content);
        const [text, after] = format(content, kind);
        setText(value, text);
        setText(unit, after);
        if (kind === 'percent') node.style.setProperty('--share', clamp(content ?? 0, 0, 1));
        const state = kind === 'state' && /^(ok|warn|bad)\b/.exec(content ?? '')?.[1];
        if (state) node.dataset.state = state;
        else delete node.dataset.state;
    };
    return node;
}

/** Places the percentiles of `row` on a log scale between `low` and `high`. */
function spread(node, { row, low, high }) {
    for (const name of ['p50', 'p99', 'p999']) {
        const at = row?.count > 0 && row[name] > 0 ? Math.log(row[name] / low) / Math.log(high / low) : 0;
        node.style.setProperty(`--${name}`, clamp(at, 0, 1).toFixed(4));
    }
}

// ---- Sections ----

function sectionNode({ id }) {
    const title = make('h2', { tabindex: '-1' });
    const [tiles, panels] = [make('dl', { class: 'tiles' }), make('div', { class: 'panels' })];
    const node = make('section', { 'data-id': id }, title, tiles, panels);
    node.update = ({ title: name, tiles: values = [], latency, heat, lines = [], tables = [] }) => {
        setText(title, name);
        each(tiles, values, (tile) => tile.label, () => tileNode(id));
        const list = tables.map((table) => ({ key: `table ${table.title}`, create: tableNode, data: table }));
        if (lines.length) list.unshift({ key: 'lines', create: linesNode, data: lines });
        if (heat) list.unshift({ key: 'heat', create: heatNode, data: heat });
        if (latency) list.unshift({ key: 'latency', create: latencyNode, data: latency });
        each(panels, list, ({ key }) => key, ({ create }) => create(id));
        node.wide = Boolean(latency || heat || lines.length) || tables.some(({ columns }) => columns.length > 5);
    };
    return node;
}

function tileNode(id) {
    const [label, value, line] = [make('dt'), valueNode('dd'), make('dd', { class: 'spark', 'aria-hidden': 'true' })];
    const node = make('div', { class: 'tile' }, label, value, line);
    node.update = (tile) => {
        setText(label, tile.label);
        label.title = tile.label;
        value.update(tile.value, tile.kind);
        drawSpark(line, sparks.get(`${id} ${tile.label}`));
    };
    return node;
}

function drawSpark(box, values) {
    box.hidden = !values;
    if (!values) return;
    if (!box.firstChild) {
        const picture = svg('svg', { viewBox: `0 0 ${SPARK_SECONDS - 1} 1`, preserveAspectRatio: 'none' });
        picture.append(svg('path', { class: 'area' }), svg('path'));
        box.append(picture);
    }
    const top = Math.max(...values, Number.MIN_VALUE);
    const first = SPARK_SECONDS - values.length;
    const line = values.map((value, index) => `${first + index},${(1 - value / top).toFixed(3)}`).join('L');
    const [area, stroke] = box.firstChild.children;
    area.setAttribute('d', `M${first},1L${line}L${SPARK_SECONDS - 1},1Z`);
    stroke.setAttribute('d', `M${line}`);
}

let panelCount = 0;
function panelNode(title, ...aside) {
    const heading = make('h3', { id: `panel-${(panelCount += 1)}` }, title);
    const node = make('div', { class: 'panel' }, make('div', { class: 'head' }, heading, ...aside));
    return [node, heading];
}

/** Makes a table that scrolls inside itself, with a method `draw(columns, rows)`. */
function gridNode(labelledby) {
    const [head, body] = [make('tr'), make('tbody')];
    const table = make('table', { 'aria-labelledby': labelledby }, make('thead', {}, head), body);
    const node = make('div', { class: 'scroll', role: 'group', 'aria-labelledby': labelledby }, table);
    overflows.observe(node);
    overflows.observe(table);
    node.draw = (columns, rows) => {
        each(head, columns, (_, index) => index, () => {
            const cell = make('th', { scope: 'col' }, make('span'));
            cell.update = ({ label, kind }) => {
                setText(cell.firstChild, label);
                cell.title = kind === 'spread' ? 'From p50 to p99.9, with a notch at p99, on a logarithmic scale' : '';
                cell.className = kind in formats || kind === 'spread' ? kind : 'text';
            };
            return cell;
        });
        const lines = rows.map((values) => columns.map(({ kind }, index) => ({ kind, value: values[index] })));
        each(body, lines, (_, index) => index, () => {
            const row = make('tr');
            row.update = (cells) => {
                each(row, cells, (_, index) => index, () => {
                    const cell = valueNode(row.children.length ? 'td' : 'th', row.children.length ? {} : { scope: 'row' });
                    const update = cell.update;
                    cell.update = ({ value, kind }) => update(value, kind);
                    return cell;
                });
            };
            return row;
        });
    };
    return node;
}

/** Makes a table reachable with the Tab key only if it scrolls. */
const overflows = new ResizeObserver((entries) => {
    for (const node of entries.map(({ target }) => target.closest('.scroll'))) {
        if (node.scrollWidth > node.clientWidth) node.tabIndex = 0;
        else node.removeAttribute('tabindex');
    }
});

function tableNode() {
    const [node, heading] = panelNode('');
    const [grid, empty] = [gridNode(heading.id), make('p', { class: 'empty' })];
    node.append(grid, empty);
    node.update = ({ data }) => {
        setText(heading, data.title);
        setText(empty, data.empty ?? 'Nothing.');
        grid.hidden = data.rows.length === 0;
        empty.hidden = !grid.hidden;
        grid.draw(data.columns, data.rows);
    };
    return node;
}

const PERCENTILES = [['p50', 'p50'], ['p95', 'p95'], ['p99', 'p99'], ['p99.9', 'p999'], ['max', 'max']];

function latencyNode(id) {
    const choice = make('fieldset', {}, make('legend', {}, 'Window'));
    const options = choice.appendChild(make('div', { style: 'display: contents' }));
    const [node, heading] = panelNode('Latency by stage', choice);
    const grid = node.appendChild(gridNode(heading.id));
    node.update = ({ data: { windows, rows } }) => {
        const index = Math.max(0, windows.indexOf(chosen));
        const radios = windows.map((label, at) => ({ label, checked: at === index }));
        each(options, radios, ({ label }) => label, ({ label }) => {
            const input = make('input', { type: 'radio', name: `window-${id}`, value: label });
            input.addEventListener('change', () => choose(label));
            const option = make('label', {}, input, make('span', {}, label));
            option.update = ({ checked }) => (input.checked = checked);
            return option;
        });
        const shown = rows.map((row) => row.windows[index]);
        const [low, high] = decades(shown);
        const columns = [
            { label: 'stage', kind: 'text' },
            { label: 'count', kind: 'count' },
            ...PERCENTILES.map(([label]) => ({ label, kind: 'duration' })),
            { label: `${bound(low)} … ${bound(high)}`, kind: 'spread' },
        ];
        const cells = (row) => [row?.count, ...PERCENTILES.map(([, name]) => row?.[name]), { row, low, high }];
        grid.draw(columns, shown.map((row, at) => [rows[at].label, ...cells(row)]));
    };
    return node;
}

/** Returns the powers of ten around all percentiles. */
function decades(rows) {
    const known = rows.filter((row) => row?.p50 > 0);
    const low = Math.min(1e-3, ...known.map((row) => row.p50));
    const high = Math.max(1e-3, ...known.map((row) => row.p999));
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.01))];
}

// ---- The whole page ----

const STATES = {
    __proto__: null,
    ready: ['ok', 'ready'],
    degraded: ['warn', 'degraded'],
    not_ready: ['bad', 'not ready'],
    draining: ['warn', 'draining'],
};

function render(snapshot) {
    const [state, word] = STATES[snapshot.state] ?? ['warn', String(snapshot.state)];
    setText($('name'), snapshot.name);
    setText($('address'), location.host);
    setText($('version'), snapshot.version);
    setText($('uptime'), `up ${age(snapshot.uptime)}`);
    setText($('state'), word);
    $('state').dataset.state = state;
    document.title = `${{ ok: '✓', warn: '▲', bad: '✕' }[state]} ${word} · ${snapshot.name} · ${location.host}`;
    each($('reasons'), snapshot.reasons ?? [], (reason) => reason, () => {
        const item = make('li');
        item.update = (reason) => setText(item, reason);
        return item;
    });
    for (const item of $('reasons').children) item.dataset.state = state;
    each($('nav'), snapshot.sections, ({ id }) => id, navNode);
    each($('main'), snapshot.sections, ({ id }) => id, sectionNode);
    let half = null; // Section in the left half of a row; without a right half it gets the whole row.
    for (const section of $('main').children) {
        section.classList.toggle('wide', section.wide);
        if (section.wide) half?.classList.add('wide');
        half = section.wide || half ? null : section;
    }
    half?.classList.add('wide');
    document.querySelector('noscript')?.remove();
    if (lost) renderLoss();
}

/** Shows the loss of contact: the last known state is not that of a daemon which does not answer. */
function renderLoss() {
    const word = `no contact since ${clock(lost)}`;
    setText($('state'), word);
    $('state').dataset.state = 'gone';
    for (const item of $('reasons').children) item.dataset.state = 'gone';
    document.title = `○ ${word} · ${latest?.name ?? 'Postern'} · ${location.host}`;
}

function navNode({ id }) {
    const link = make('a', { href: `#${id}` });
    link.addEventListener('click', (event) => {
        event.preventDefault(); // The hash stores the window.
        const section = [...$('main').children].find((node) => node.dataset.id === id);
        section?.scrollIntoView();
        section?.querySelector('h2').focus({ preventScroll: true });
    });
    const node = make('li', {}, link);
    node.update = ({ title }) => setText(link, title);
    return node;
}

/** Sets the window of all latency tables, and stores it in the URL's hash. */
function choose(label) {
    history.replaceState(null, '', `#${new URLSearchParams({ window: label })}`);
    readHash();
}

function readHash() {
    chosen = new URLSearchParams(location.hash.slice(1)).get('window');
    if (latest) render(latest);
}
