//! From a bucket of a histogram to a request that fell into it: a real Prometheus keeps exemplars of traces that a real
//! Jaeger has.

use crate::support::jaeger::{Jaeger, Trace};
use crate::support::prometheus::{Exemplar, Programs, Prometheus};
use crate::support::up::{Ports, Up, up};
use crate::support::{admin, eventually, proxy, target};
use tempfile::TempDir;

/// The histogram's stages that every check has with the embedded store.
const STAGES: [&str; 4] = ["get", "verify", "add", "total"];
const REQUESTS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Prometheus and Jaeger: POSTERN_PROMETHEUS and POSTERN_JAEGER name them"]
async fn an_exemplar_leads_to_the_trace_of_its_request() {
    let (programs, jaeger, home) = (Programs::find(), Jaeger::start().await, TempDir::new().unwrap());
    let mut command = up(home.path(), Ports::any());
    command.args(["--open-egress", "--traces", &jaeger.endpoint()]);
    let system = Up::of(command);
    let prometheus = Prometheus::start(&programs, system.ports.admin).await;
    tunnels(&system).await;
    let exemplars = eventually("each stage has an exemplar", || async {
        let found = prometheus.exemplars("postern_check_duration_seconds_bucket").await;
        let has_all = STAGES.iter().all(|stage| found.iter().any(|one| one.series["stage"] == **stage));
        has_all.then_some(found)
    })
    .await;
    println!("{} exemplars, the first: {:?}", exemplars.len(), exemplars[0]);
    let is_in =
        |traces: &[Trace], one: &Exemplar| traces.iter().any(|trace| trace.id == one.labels["trace_id"]);
    let traces = jaeger
        .traces_when("Jaeger has them all", |traces| exemplars.iter().all(|one| is_in(traces, one)))
        .await;
    for one in &exemplars {
        let trace = traces.iter().find(|trace| trace.id == one.labels["trace_id"]).unwrap();
        assert_leads_to(one, trace);
    }
    // Exemplars are on buckets' lines only, and absent from the format that has no place for them.
    let page = admin::open_metrics(system.ports.admin).await;
    let lines = || page.lines().filter(|line| line.contains("# {"));
    assert!(lines().count() >= STAGES.len(), "{page}");
    assert!(lines().all(|line| line.starts_with("postern_check_duration_seconds_bucket{")), "{page}");
    let plain = admin::page(system.ports.admin, "/metrics").await;
    assert!(!plain.contains("trace_id"), "{plain}");
    prometheus.terminate();
    system.terminate().assert_stopped();
    jaeger.terminate();
}

/// The labels name nothing but the trace, and the value is the time of its stage and in the bucket.
fn assert_leads_to(one: &Exemplar, trace: &Trace) {
    assert_eq!(one.labels.len(), 1, "{one:?}");
    let bound = &one.series["le"];
    assert!(bound == "+Inf" || one.value <= bound.parse::<f64>().unwrap(), "{one:?}");
    let micros = match &one.series["stage"][..] {
        "get" => trace.span("check").duration,
        "verify" => trace.span("verify").duration,
        "add" => trace.span("spend").duration,
        "total" => trace.span("spend").end() - trace.span("parse").end(),
        other => panic!("{other}: {one:?}"),
    };
    // Jaeger cuts nanoseconds off.
    assert!((one.value * 1e6 - micros as f64).abs() <= 2.0, "{one:?} is not {micros} us: {trace:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_traces_there_is_no_exemplar() {
    let home = TempDir::new().unwrap();
    let system = Up::start(home.path());
    tunnels(&system).await;
    let page = admin::open_metrics(system.ports.admin).await;
    let counted =
        format!("postern_check_duration_seconds_count{{stage=\"total\",result=\"admitted\"}} {REQUESTS}\n");
    assert!(page.contains(&counted), "{page}");
    assert!(page.ends_with("# EOF\n") && !page.contains("# {"), "{page}");
    system.terminate().assert_stopped();
}

async fn tunnels(system: &Up) {
    let echo = target::echo().await.to_string();
    for _ in 0..REQUESTS {
        let mut stream = proxy::dial(system.ports.client).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &echo, None).await.unwrap().status, 200);
        proxy::echoes(&mut stream, b"counted").await.unwrap();
    }
}
