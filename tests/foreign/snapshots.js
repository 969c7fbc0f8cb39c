// Snapshots of the live page for its tests, in the form that the page gets them from /events.

export const HOSTILE = '<img src=x onerror="window.hostile=1"><script>window.hostile=2</script>';

/** A snapshot with long and hostile text wherever there is text. */
export function worst() {
    const long = `${HOSTILE} ${'a-name-without-any-break'.repeat(12)}`;
    const spread = { count: 1, p50: 1e-9, p95: 1e-3, p99: 0.04, p999: 1, max: 3 };
    const column = (kind) => ({ label: `${kind} ${HOSTILE}`, kind });
    const kinds = ['text', 'count', 'rate', 'bytes', 'bytes_rate', 'duration', 'age', 'percent', 'state', long];
    const row = (value) => kinds.map((kind) => (['text', 'state', long].includes(kind) ? long : value));
    const states = ['ok', 'warn: slow', 'bad: gone'].map((state) => row(0.5).with(8, state));
    return {
        name: 'postern', version: long, at: 1763720000, uptime: 1e9, state: 'not_ready', reasons: [long, HOSTILE],
        sections: ['one', 'two', long].map((id) => ({
            id, title: long,
            tiles: kinds.map((kind) => ({ label: long, value: kind === 'state' ? `bad: ${long}` : 123456.789, kind })),
            latency: { windows: ['10 s', HOSTILE], rows: [{ label: long, windows: [spread, null] }, { label: 'none', windows: [null, null] }] },
            heat: { label: long, bounds: [0.001, 0.038, 0.042], column: [1, 0, 5, 1e9] },
            lines: [{ label: long, meaning: long, value: 1e9, total: 1e15 }, { label: HOSTILE, meaning: HOSTILE, value: 0, total: null }],
            tables: [
                { title: long, empty: HOSTILE, columns: kinds.map(column), rows: [row(1e12), row(null), ...states] },
                { title: 'nothing', empty: long, columns: [column('text')], rows: [] },
            ],
        })),
    };
}

/** What a gateway of a fleet shows on a bad day: large numbers, and states that are sentences. */
export function busy() {
    const spread = { count: 123_456, p50: 22.2e-6, p95: 44.4e-6, p99: 444e-6, p999: 44.4e-3, max: 444e-3 };
    const table = (title, columns, ...rows) =>
        ({ title, empty: '', columns: Object.entries(columns).map(([label, kind]) => ({ label, kind })), rows });
    const endings = { outcome: 'text', now: 'rate', total: 'count' };
    const addresses = { address: 'text', state: 'state', connections: 'count', outstanding: 'count', occupancy: 'percent', 'failed connects': 'count' };
    const silent = 'bad: the double-spend store did not answer in time';
    return {
        name: 'postern', version: '0.1.0', at: 1763720000, uptime: 86_400, state: 'ready', reasons: [],
        sections: [
            {
                id: 'checks', title: 'Double-spend checks', tiles: [{ label: 'Admitted', value: 1e6, kind: 'count' }],
                latency: { windows: ['10 s', '1 min', '10 min'], rows: ['the whole check', 'verify the signature', 'wait for a connection'].map((label) => ({ label, windows: [spread, spread, spread] })) },
                tables: [table('Refusals by reason', endings, ['malformed token', 123.4, 1_234_567])],
            },
            {
                id: 'store', title: 'Store: shared',
                tables: [table('Addresses of the shared store', addresses, ['127.0.0.1:11211', silent, 16, 1234, 0.123, 123_456])],
            },
            {
                id: 'agent', title: 'Agent',
                tables: [table('Minting', { 'last failure': 'state', 'next attempt in': 'age' }, [`warn: ${'the issuer answered; check the key. '.repeat(4)}`, 123])],
            },
        ],
    };
}
