// What loadtest/run decided for this run: addresses, phases and which tokens are whose. One file, read once.

export const plan = JSON.parse(open(__ENV.LOADTEST_PLAN));

// The options that every script exports: phases and rates come from the plan, so that the number of tokens that are
// minted and the number that are spent follow from one place.
export function options(thresholds = {}) {
    return {
        scenarios: plan.phases,
        thresholds: {
            // A token admitted twice, or something that is no good token admitted at all.
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

// The answer to who asked for a summary: all metrics as JSON, for loadtest/run.
export function handleSummary(data) {
    return { [plan.summary]: JSON.stringify(data, null, 1) };
}
