//! Traces, as a real Jaeger has them: every stage of a request, what a slow check waited for, whose child a request is, and
//! nothing of who asked for what.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::jaeger::{Jaeger, Trace};
use support::up::{Ports, Up, up};
use support::{proxy, target};
use tempfile::TempDir;

/// The stages of a request in their order.
const STAGES: [&str; 5] = ["parse", "check", "verify", "spend", "dial"];
/// Microseconds that a border of a span may be off: Jaeger cuts nanoseconds off starts and lengths alike.
const ROUNDING: u64 = 2;

fn traced_up(home: &TempDir, jaeger: &Jaeger) -> Up {
    let mut command = up(home.path(), Ports::any());
    command.args(["--open-egress", "--traces", &jaeger.endpoint()]);
    Up::of(command)
}

/// A request through the agent, and a tunnel that carries something and ends.
async fn tunnel_through(system: &Up, target: &str) {
    let mut stream = proxy::dial(system.ports.client).await.unwrap();
    let head = proxy::connect(&mut stream, target, None).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    proxy::echoes(&mut stream, b"traced").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_traces_every_request_with_all_its_stages() {
    const REQUESTS: usize = 10;
    let Some(jaeger) = Jaeger::start("up_traces_every_request_with_all_its_stages").await else { return };
    let home = TempDir::new().unwrap();
    let system = traced_up(&home, &jaeger);
    let echo = target::echo().await.to_string();
    for _ in 0..REQUESTS {
        tunnel_through(&system, &echo).await;
    }
    let traces = jaeger
        .traces_when("every request has its trace", |traces| {
            tunnels(traces).filter(|trace| trace.find("tunnel").is_some()).count() == REQUESTS
        })
        .await;
    tunnels(&traces).for_each(assert_whole);
    assert_eq!(tunnels(&traces).count(), REQUESTS, "{traces:#?}");
    // A busy machine may be slow at one or the other, and that comes first; not at all of them.
    assert!(tunnels(&traces).any(|trace| trace.kept() == Some("sampled")), "{traces:#?}");
    system.terminate().assert_stopped();
    jaeger.terminate();
}

/// The requests that opened a tunnel: while `up` starts, the agent asks for the gateway's challenge, which is traced too.
fn tunnels(traces: &[Trace]) -> impl Iterator<Item = &Trace> {
    let outcome = |trace: &Trace| trace.find("request")?.word("postern.outcome").map(str::to_owned);
    traces.iter().filter(move |trace| outcome(trace).as_deref() == Some("opened"))
}

/// All stages, each a child of the request, in their order, and what is said of the request is so.
fn assert_whole(trace: &Trace) {
    let request = trace.span("request");
    assert_eq!(trace.spans.len(), STAGES.len() + 2, "{trace:#?}");
    assert_eq!(request.parent, None, "{trace:#?}");
    for name in STAGES.into_iter().chain(["tunnel"]) {
        let span = trace.span(name);
        assert_eq!(span.parent, Some((trace.id.clone(), request.id.clone())), "{name}: {trace:#?}");
        assert!(span.start + ROUNDING >= request.start, "{name} begins before the request: {trace:#?}");
    }
    let [parse, check, verify, spend, dial] = STAGES.map(|name| trace.span(name));
    // The hint is asked for beside the verification: both come before the verdict.
    for (before, after) in [(parse, check), (parse, verify), (check, spend), (verify, spend), (spend, dial)] {
        let in_order = before.end() <= after.start + ROUNDING;
        assert!(in_order, "{} ends after {} began: {trace:#?}", before.name, after.name);
    }
    assert!(dial.end() <= request.end() + ROUNDING, "{trace:#?}");
    assert!(dial.end() <= trace.span("tunnel").start + ROUNDING, "{trace:#?}");

    assert_eq!(request.word("postern.outcome"), Some("opened"), "{trace:#?}");
    assert_eq!(request.number("http.response.status_code"), Some(200), "{trace:#?}");
    assert_eq!(request.attributes.get("error"), None, "{trace:#?}");
    // `slow` is 10 ms unless it is set, and borders are cut off.
    let check = spend.end() - parse.end();
    match trace.kept() {
        Some("sampled") => assert!(check <= 10_000 + ROUNDING, "{trace:#?}"),
        Some("slow") => assert!(check + ROUNDING >= 10_000, "{trace:#?}"),
        other => panic!("kept: {other:?}: {trace:#?}"),
    }
}
