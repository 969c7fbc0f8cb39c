//! Cost of recording one request: metrics, percentiles of the live page, the sampling decision, on one thread.
//! Also the cost of traces alone, for a request of which none is kept.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use criterion::{Criterion, criterion_group, criterion_main};
use postern_daemon::admin::catalogue::LinkKind;
use postern_daemon::admin::live::Live;
use postern_gateway::bench::Recording;
use std::hint::black_box;
use std::time::Duration;
use tempfile::TempDir;

/// No server listens there, and at these ratios almost nothing is sent.
const NOBODY: &str = "http://127.0.0.1:9";

fn recording(criterion: &mut Criterion) {
    postern_telemetry::metrics::install(&[
        postern_daemon::admin::catalogue::METRICS,
        postern_gateway::catalogue::METRICS,
    ])
    .unwrap();
    let home = TempDir::new().unwrap();
    let at = |name: &str, endpoint: Option<&str>, ratio: f64| {
        Recording::new(&home.path().join(name), endpoint.map(str::to_owned), ratio)
    };
    let (off, never, hundredth) =
        (at("off", None, 0.0), at("never", Some(NOBODY), 0.0), at("on", Some(NOBODY), 0.01));
    let mut group = criterion.benchmark_group("recording");
    group.bench_function("the clock alone", |bencher| bencher.iter(|| off.clock()));
    group.bench_function("a request, no traces", |bencher| bencher.iter(|| off.request()));
    group.bench_function("a request, traces on, none sampled", |bencher| bencher.iter(|| never.request()));
    group.bench_function("a request, 1 of 100 sampled", |bencher| bencher.iter(|| hundredth.request()));
    group.bench_function("traces alone, off", |bencher| bencher.iter(|| off.unsampled()));
    group.bench_function("traces alone, not sampled", |bencher| bencher.iter(|| never.unsampled()));
    group.bench_function("traces alone, 1 of 100 sampled", |bencher| bencher.iter(|| hundredth.unsampled()));
    // A check through a shared store adds two of these.
    let link = Live::default().link(LinkKind::Store, "127.0.0.1:11211");
    group.bench_function("a command over a link", |bencher| {
        bencher.iter(|| link.answered(black_box(Duration::from_micros(42))));
    });
    group.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);
