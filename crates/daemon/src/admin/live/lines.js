// Lines over time: one small chart each, all of the same minutes. The rest of the page is in page.js.

const lines = new Map(); // Values of the sections' lines, oldest first; null if unknown.

function linesNode(id) {
    const [node] = panelNode(`Last ${HISTORY_SECONDS / 60} minutes`);
    const charts = node.appendChild(make('div', { class: 'lines' }));
    node.update = ({ data }) => each(charts, data, ({ label }) => label, () => lineNode(id));
    return node;
}

function lineNode(id) {
    const [label, value, readout] = [make('span'), make('strong'), make('output', { class: 'quiet', 'aria-live': 'off' })];
    const picture = svg('svg', { viewBox: `0 0 ${HISTORY_SECONDS} 1`, preserveAspectRatio: 'none', role: 'img' });
    const [area, stroke, cursor] = [svg('path', { class: 'area' }), svg('path'), svg('path', { class: 'cursor' })];
    picture.append(area, stroke, cursor);
    const axis = make('div', { class: 'axis quiet', 'aria-hidden': 'true' }, make('span'), make('span', {}, 'now'));
    axis.firstChild.textContent = `−${HISTORY_SECONDS / 60} min`;
    const meaning = make('figcaption', { class: 'quiet' });
    const head = make('div', { class: 'head' }, make('span', {}, label, value), readout);
    const node = make('figure', {}, head, picture, axis, meaning);
    let line;
    let pointer = null; // Second under the mouse, counted from the left.

    const draw = () => {
        const values = lines.get(`${id} ${line.label}`) ?? [];
        const first = HISTORY_SECONDS - values.length;
        const top = Math.max(1, ...values);
        const steps = stepped(values, first, top);
        area.setAttribute('d', steps.map(({ from, to, path }) => `M${from},1${path}H${to}V1Z`).join(''));
        stroke.setAttribute('d', steps.map(({ from, y, path }) => `M${from},${y}${path}`).join(''));
        cursor.setAttribute('d', pointer === null ? '' : `M${pointer + 0.5},0V1`);
        const unit = line.total === null ? '' : ' a second';
        const most = `at most ${grouped.format(values.length ? Math.max(...values) : 0)}${unit}`;
        picture.setAttribute('aria-label', `${line.label}, last ${HISTORY_SECONDS / 60} minutes: ${most}`);
        const at = pointer === null ? null : values[pointer - first] ?? 'not known';
        const time = at === null ? null : clock(new Date((latest.at - HISTORY_SECONDS + 1 + pointer) * 1000));
        setText(readout, at === null ? most : `${time}: ${typeof at === 'number' ? grouped.format(at) : at}`);
    };
    const point = ({ type, clientX }) => {
        const { left, width } = picture.getBoundingClientRect();
        const second = Math.floor(((clientX - left) / width) * HISTORY_SECONDS);
        pointer = type === 'pointerleave' ? null : clamp(second, 0, HISTORY_SECONDS - 1);
        draw();
    };
    for (const type of ['pointermove', 'pointerdown', 'pointerleave']) picture.addEventListener(type, point);

    node.update = (now) => {
        line = now;
        setText(label, line.label);
        setText(value, grouped.format(line.total ?? line.value));
        setText(meaning, line.meaning);
        draw();
    };
    return node;
}

/** Returns the values as steps between 0 (the top) and 1, with one path per stretch without a gap. */
function stepped(values, first, top) {
    const stretches = [];
    let before = null;
    values.forEach((value, index) => {
        if (value !== null) {
            const [x, y] = [first + index, (1 - value / top).toFixed(3)];
            if (before === null) stretches.push({ from: x, y, path: '' });
            const stretch = stretches.at(-1);
            stretch.to = x + 1;
            stretch.path += `V${y}H${x + 1}`;
        }
        before = value;
    });
    return stretches;
}
