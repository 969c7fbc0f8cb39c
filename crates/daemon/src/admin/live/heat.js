// Heat map: one column per second, one row per bucket. The rest of the page is in page.js.

const GUTTER = 52; // Width of the rows' labels, in CSS pixels.
const FOOT = 18; // Height of the columns' labels, in CSS pixels.

function heatNode(id) {
    const canvas = make('canvas', { tabindex: '0', role: 'application', 'aria-roledescription': 'heat map' });
    const readout = make('output', { class: 'readout', 'aria-live': 'polite' });
    const most = make('span');
    const [node, heading] = panelNode('', make('div', { class: 'legend', 'aria-hidden': 'true' }, '1', make('i'), most));
    node.append(canvas, readout);
    node.classList.add('heat');
    let heat, frame;
    let cursor = null; // Selected second and bucket; it moves left with its second.
    let pointer = null; // Position of the mouse, in CSS pixels; it does not move with time.

    const draw = () => {
        frame = null;
        const columns = heats.get(id) ?? [];
        if (pointer) cursor = cellAt(canvas, heat.bounds, pointer);
        if (cursor && ticks - cursor.tick >= Math.max(1, columns.length)) cursor = null;
        const highest = drawHeat(canvas, heat.bounds, columns, cursor);
        setText(most, highest ? `${grouped.format(highest)} a second` : 'nothing yet');
        readout.classList.toggle('idle', !cursor);
        setText(readout, cursor ? cellText(heat, columns, cursor) : 'Point at a cell, or use the arrow keys.');
    };
    const redraw = () => (frame ??= requestAnimationFrame(draw));
    const point = (event) => {
        pointer = event.type === 'pointerleave' ? null : { x: event.offsetX, y: event.offsetY };
        if (!pointer) cursor = null;
        readout.setAttribute('aria-live', 'off'); // Users of a mouse see the readout.
        redraw();
    };
    for (const type of ['pointermove', 'pointerdown', 'pointerleave']) canvas.addEventListener(type, point);
    canvas.addEventListener('keydown', (event) => {
        const columns = heats.get(id) ?? [];
        const moved = !event.ctrlKey && !event.altKey && !event.metaKey && moveCursor(event, cursor, columns, heat.bounds);
        if (moved === false || columns.length === 0) return;
        event.preventDefault();
        [pointer, cursor] = [null, moved];
        readout.setAttribute('aria-live', 'polite');
        redraw();
    });
    new ResizeObserver(() => heat && redraw()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);

    node.update = ({ data }) => {
        heat = data;
        setText(heading, `${heat.label}, last 5 minutes`);
        canvas.setAttribute('aria-label', `${heat.label}: arrow keys move through seconds and buckets`);
        redraw();
    };
    return node;
}

/** Returns the cursor after a key press: null to remove it, false for other keys. The first key selects the newest second. */
function moveCursor({ key, shiftKey }, cursor, columns, bounds) {
    if (key === 'Escape') return null;
    const step = shiftKey ? 10 : 1;
    const [right, up] = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
        PageUp: [-60, 0], PageDown: [60, 0], Home: [-HISTORY_SECONDS, 0], End: [HISTORY_SECONDS, 0] }[key] ?? [];
    if (right === undefined) return false;
    const newest = columns.at(-1) ?? [];
    const from = cursor ?? { tick: ticks, bucket: Math.max(0, newest.indexOf(Math.max(...newest))) };
    const move = cursor ? [right, up] : [0, 0];
    return {
        tick: clamp(from.tick + move[0], ticks - columns.length + 1, ticks),
        bucket: clamp(from.bucket + move[1], 0, bounds.length),
    };
}

function cellAt(canvas, bounds, { x, y }) {
    const column = Math.floor(((x - GUTTER) / (canvas.clientWidth - GUTTER)) * HISTORY_SECONDS);
    const row = Math.floor((1 - y / (canvas.clientHeight - FOOT)) * (bounds.length + 1));
    if (column < 0 || row < 0) return null;
    return { tick: ticks - HISTORY_SECONDS + 1 + clamp(column, 0, HISTORY_SECONDS - 1), bucket: clamp(row, 0, bounds.length) };
}

function cellText({ bounds }, columns, { tick, bucket }) {
    const [low, high] = [bounds[bucket - 1], bounds[bucket]];
    const range = !low ? `up to ${bound(high)}` : !high ? `above ${bound(low)}` : `${bound(low)} to ${bound(high)}`;
    const count = columns.at(tick - ticks - 1)?.[bucket];
    const time = clock(new Date((latest.at - ticks + tick) * 1000));
    return `${time}, ${range}: ${count === undefined ? 'not known' : grouped.format(count)}`;
}

/** Draws in device pixels, so that every edge is sharp; returns the highest count. */
function drawHeat(canvas, bounds, columns, cursor) {
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const scale = canvas.clientWidth ? devicePixelRatio : 0;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((size) => Math.round(size * scale));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext('2d');
    const [left, bottom] = [Math.round(GUTTER * scale), height - Math.round(FOOT * scale)];
    const x = (slot) => left + Math.round(((width - left) * slot) / HISTORY_SECONDS);
    const y = (bucket) => Math.round(bottom * (1 - bucket / (bounds.length + 1)));
    context.clearRect(0, 0, width, height);

    const start = HISTORY_SECONDS - columns.length;
    context.fillStyle = colour('--heat-none');
    columns.forEach((column, index) => {
        if (column) context.fillRect(x(start + index), 0, x(start + index + 1) - x(start + index), bottom);
    });
    const most = columns.reduce((most, column) => Math.max(most, ...(column ?? [])), 0);
    const shades = ramp(colour('--heat').split(','), 48);
    const gap = bottom / (bounds.length + 1) > 6 * scale ? Math.ceil(scale) : 0;
    columns.forEach((column, index) => column?.forEach((count, bucket) => {
        if (count === 0) return;
        context.fillStyle = shades[Math.round((Math.log(count) / Math.log(Math.max(2, most))) * (shades.length - 1))];
        const top = y(bucket + 1);
        context.fillRect(x(start + index), top, x(start + index + 1) - x(start + index), y(bucket) - top - gap);
    }));

    context.font = `${11 * scale}px ${style.fontFamily}`;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    const label = (seconds, edge, name) => {
        context.fillStyle = colour(name);
        context.fillText(bound(seconds), left - 8 * scale, clamp(edge, 6 * scale, bottom - 5 * scale));
    };
    bounds.forEach((seconds, bucket) => {
        if (Math.abs(Math.log10(seconds) - Math.round(Math.log10(seconds))) > 1e-6) return;
        label(seconds, y(bucket + 1), '--quiet');
        context.fillRect(left - 5 * scale, y(bucket + 1), 4 * scale, Math.ceil(scale));
    });
    // Checks that wait for a delayed acknowledgement, which costs 40 ms, line up here.
    if (bounds.some((seconds) => seconds >= 0.038 && seconds <= 0.042)) {
        const over = bounds.findIndex((seconds) => seconds >= 0.04);
        const [low, high] = [bounds[over - 1] ?? 0.04, bounds[over]];
        const edge = y(over + (high > low ? Math.log(0.04 / low) / Math.log(high / low) : 1));
        label(0.04, edge, '--mark');
        for (let at = left; at < width; at += 8 * scale) context.fillRect(at, edge, 4 * scale, Math.ceil(scale));
    }
    context.fillStyle = colour('--quiet');
    for (let minutes = 5; minutes >= 0; minutes -= 1) {
        const at = x(HISTORY_SECONDS - 60 * minutes);
        context.textAlign = minutes === 5 ? 'left' : minutes === 0 ? 'right' : 'center';
        if (minutes % 2 === 0 || width - left > 350 * scale) context.fillText(minutes === 0 ? 'now' : `−${minutes} min`, at, height - 7 * scale);
        context.fillRect(Math.min(at, width - Math.ceil(scale)), bottom, Math.ceil(scale), 4 * scale);
    }
    if (cursor) {
        const [slot, wide] = [HISTORY_SECONDS - 1 - (ticks - cursor.tick), Math.ceil(scale)];
        context.fillStyle = colour('--text');
        context.globalAlpha = 0.35;
        context.fillRect(x(slot), 0, wide, bottom);
        context.globalAlpha = 1;
        const [near, far] = [3 * scale, 2 * scale];
        const top = y(cursor.bucket + 1);
        const box = [x(slot) - near, top - far, x(slot + 1) - x(slot) + 2 * near, y(cursor.bucket) - top + 2 * far];
        for (const [name, pixels] of [['--surface', 4], ['--text', 1.5]]) { // visible on every shade
            context.strokeStyle = colour(name);
            context.lineWidth = pixels * scale;
            context.strokeRect(...box);
        }
    }
    return most;
}

/** Returns `count` colours, evenly spaced from the first of `stops` ("#rrggbb") to the last. */
function ramp(stops, count) {
    const parts = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.trim().slice(at, at + 2), 16)));
    return Array.from({ length: count }, (_, index) => {
        const at = (index / (count - 1)) * (parts.length - 1);
        const [from, to] = [parts[Math.floor(at)], parts[Math.ceil(at)]];
        return `rgb(${from.map((part, channel) => Math.round(part + (to[channel] - part) * (at % 1))).join(' ')})`;
    });
}
