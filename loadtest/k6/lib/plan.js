// The plan of this run, made by loadtest/run: addresses, phases and the tokens of each phase. One file, read once.

export const plan = JSON.parse(open(__ENV.LOADTEST_PLAN));

// The options that every script exports. Phases and rates come from the plan, so that the numbers of minted and of
// spent tokens have one source.
export function options(thresholds = {}) {
    return {
        scenarios: plan.phases,
        thresholds: {
            // A token that was admitted twice, or an admission without a good token.
            wrong_admissions: ['count==0'],
            // Answers outside of what the scenario allows for that kind of request.
            unexpected_answers: [`rate<=${plan.unexpected}`],
            ...thresholds,
        },
        batch: 32,
        batchPerHost: 32,
        discardResponseBodies: true,
        maxRedirects: 0,
        // No tag that grows with the run: k6 keeps a time series for each combination of tags.
        systemTags: ['scenario', 'status', 'method'],
        summaryTrendStats: ['count', 'med', 'p(95)', 'p(99)', 'max'],
    };
}

// k6's summary: all metrics as JSON, for loadtest/run.
export function handleSummary(data) {
    return { [plan.summary]: JSON.stringify(data, null, 1) };
}
