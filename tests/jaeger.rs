//! Traces, as a real Jaeger has them: every stage of a request, what a slow check waited for, whose child a request is, and
//! nothing about who requested what.

mod privacy;

use crate::support::admin::{self, Metrics, metrics_when};
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::jaeger::{Jaeger, Span, Trace};
use crate::support::memcached::Memcached;
use crate::support::relay::Relay;
use crate::support::up::{Ports, Up, up};
use crate::support::{eventually, proxy, target, tokens};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
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
#[ignore = "needs Jaeger: POSTERN_JAEGER names the binary"]
async fn up_traces_every_request_with_all_its_stages() {
    const REQUESTS: usize = 10;
    let jaeger = Jaeger::start().await;
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

/// The requests that opened a tunnel: while `up` starts, the agent fetches the gateway's challenge, which is traced too.
fn tunnels(traces: &[Trace]) -> impl Iterator<Item = &Trace> {
    let outcome = |trace: &Trace| trace.find("request")?.word("postern.outcome").map(str::to_owned);
    traces.iter().filter(move |trace| outcome(trace).as_deref() == Some("opened"))
}

/// All stages, each a child of the request, in their order, and the request's attributes are correct.
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
    // The check overlaps the verification: both come before the verdict.
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

/// A gateway, ready, with everything it needs, and tokens for it.
struct Scene {
    _home: TempDir,
    _issuer: Daemon,
    gateway: Daemon,
    target: SocketAddr,
    tokens: Vec<String>,
}

impl Scene {
    /// `store` is what stands in the section `[store]`, `tracing` in `[tracing]`.
    async fn new(jaeger: &Jaeger, store: &str, tracing: &str) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nworkers = 2
[issuer]\ndirectory = \"{}/.well-known/private-token-issuer-directory\"
[challenge]\nissuer_name = \"issuer.example\"\norigin = \"proxy.example\"
[egress]\nprivate = true\nports = \"any\"
[tracing]\nendpoint = \"{}\"\n{tracing}
[store]\n{store}\n",
            issuer.http(),
            jaeger.endpoint()
        );
        let config = home.path().join("gateway.toml");
        std::fs::write(&config, text.replace("HOME", home.path().to_str().unwrap())).unwrap();
        let gateway = Daemon::ready("gateway", &config).await;
        let tokens = tokens::mint(&issuer.http(), &gateway.http(), 64);
        Self { _home: home, _issuer: issuer, gateway, target: target::echo().await, tokens }
    }

    /// Presents a token. `more` are fields of the request.
    async fn present(&mut self, more: &str) -> proxy::Head {
        let mut stream = proxy::dial(self.gateway.address).await.unwrap();
        let fields = format!("{}{more}", self.tokens.pop().unwrap());
        proxy::connect(&mut stream, &self.target.to_string(), Some(&fields)).await.unwrap()
    }

    async fn kept(&self, reason: &str) -> u64 {
        let metrics = Metrics::of(self.gateway.admin).await;
        metrics.value(&format!("postern_traces_total{{reason=\"{reason}\"}}"))
    }
}

/// Far from what a check takes on a busy machine, and from what the store will take.
const SLOW: Duration = Duration::from_millis(30);
/// A little more than the 40 ms of a delayed acknowledgement, as those look from outside.
const HELD: Duration = Duration::from_millis(44);
/// Later than the store's `timeout` of 2 s.
const TOO_LATE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Jaeger: POSTERN_JAEGER names the binary"]
async fn slow_and_failed_checks_are_traced_with_what_the_store_did() {
    const REQUESTS: u64 = 20;
    let jaeger = Jaeger::start().await;
    let mut memcached = Memcached::start();
    let relay = Relay::to(&[memcached.port()]);
    let address = relay.address();
    let store =
        format!("kind = \"memcached\"\n[store.memcached]\naddresses = [{address:?}]\ntimeout = \"2s\"");
    let tracing = format!("sample_ratio = 0.0\nslow = \"{}ms\"", SLOW.as_millis());
    let mut scene = Scene::new(&jaeger, &store, &tracing).await;

    for _ in 0..REQUESTS {
        assert_eq!(scene.present("").await.status, 200);
    }
    let slow_by_accident = scene.kept("slow").await;
    assert!(slow_by_accident < REQUESTS, "none of them was fast");
    relay.hold_replies(HELD);
    for _ in 0..REQUESTS {
        assert_eq!(scene.present("").await.status, 200);
    }
    assert_eq!(scene.kept("slow").await, slow_by_accident + REQUESTS, "each was slow");
    // Spans travel in a row: those of a fast request would be there before these.
    let slow_by_accident = usize::try_from(slow_by_accident).unwrap();
    let expected = slow_by_accident + REQUESTS as usize;
    let mut traces = jaeger
        .traces_when("the slow ones are there", |traces| traces.iter().filter(is_whole).count() >= expected)
        .await;
    assert_eq!(traces.len(), expected, "a fast request left a trace: {traces:#?}");
    traces.sort_by_key(|trace| trace.span("request").start);
    traces.iter().for_each(assert_slow);
    let held = &traces[slow_by_accident..];
    let stalls: Vec<_> = held.iter().map(|trace| assert_commands(trace, &address)).collect();
    let add = held[0].span("store add");
    println!(
        "slow by accident: {slow_by_accident}; stalls: {stalls:?}; the first add: {:#?}",
        add.attributes
    );
    assert!(stalls.contains(&["delayed_ack"; 2]), "{stalls:?}");

    // The add is written, and its reply does not come in time.
    relay.hold_replies(TOO_LATE);
    assert_eq!(scene.present("").await.status, 503);
    let failed = failed_with(&jaeger, "store_unknown").await;
    let request = failed.span("request");
    assert_eq!(request.word("postern.check.result"), Some("unknown"), "{failed:#?}");
    // The first command that times out closes the connection that the other waits on.
    let reason = request.word("postern.store.unknown_reason").unwrap();
    assert!(["timed_out", "unavailable"].contains(&reason), "{failed:#?}");

    // The gateway knows that there is no store: it does not read the token.
    drop(relay);
    memcached.kill();
    eventually("the gateway knows that its store is away", || async {
        (admin::get(scene.gateway.admin, "/readyz").await?.0 == 503).then_some(())
    })
    .await;
    assert_eq!(scene.present("").await.status, 503);
    let failed = failed_with(&jaeger, "store_down").await;
    assert!(failed.find("verify").is_none() && failed.find("spend").is_none(), "{failed:#?}");
    assert_eq!(
        failed.span("request").word("postern.store.unknown_reason"),
        Some("unavailable"),
        "{failed:#?}"
    );
    scene.gateway.process.terminate().assert_stopped();
    jaeger.terminate();
}

/// The one trace of a request that ended so, once it is there: kept as an error, and nothing was dialled.
async fn failed_with(jaeger: &Jaeger, outcome: &str) -> Trace {
    let of = |trace: &&Trace| {
        trace.find("request").is_some_and(|request| request.word("postern.outcome") == Some(outcome))
    };
    let mut traces = jaeger.traces_when(outcome, |traces| traces.iter().any(|one| of(&one))).await;
    traces.retain(|trace| of(&trace));
    assert_eq!(traces.len(), 1, "{traces:#?}");
    let failed = traces.remove(0);
    let request = failed.span("request");
    assert_eq!(failed.kept(), Some("error"), "{failed:#?}");
    assert_eq!(request.number("http.response.status_code"), Some(503), "{failed:#?}");
    assert_eq!(request.attributes.get("error"), Some(&true.into()), "{failed:#?}");
    assert_eq!(request.word("otel.status_code"), Some("ERROR"), "{failed:#?}");
    assert!(failed.find("dial").is_none() && failed.find("tunnel").is_none(), "{failed:#?}");
    failed
}

/// A request's own span is the last that is sent before its answer, and comes in one batch with its stages.
fn is_whole(trace: &&Trace) -> bool {
    trace.find("request").is_some()
}

/// It was kept for its check, and that was slow.
fn assert_slow(trace: &Trace) {
    let (parse, spend) = (trace.span("parse"), trace.span("spend"));
    let check = Duration::from_micros(spend.end() - parse.end() + ROUNDING);
    assert!(check >= SLOW, "not slow: {trace:#?}");
    assert_eq!(trace.kept(), Some("slow"), "{trace:#?}");
    assert_eq!(trace.span("request").attributes.get("error"), None, "{trace:#?}");
}

/// The commands stand below the stages that sent them; what they waited for.
fn assert_commands<'a>(trace: &'a Trace, address: &str) -> [&'a str; 2] {
    [("store get", "check", "get", "miss"), ("store add", "spend", "add", "stored")].map(
        |(name, stage, operation, result)| {
            let (command, stage) = (trace.span(name), trace.span(stage));
            assert_eq!(command.parent, Some((trace.id.clone(), stage.id.clone())), "{trace:#?}");
            assert!(command.start + ROUNDING >= stage.start && command.end() <= stage.end() + ROUNDING);
            for (attribute, word) in [
                ("server.address", address),
                ("db.system.name", "memcached"),
                ("db.operation.name", operation),
                ("postern.store.result", result),
            ] {
                assert_eq!(command.word(attribute), Some(word), "{attribute}: {trace:#?}");
            }
            assert_stall(command)
        },
    )
}

/// Returns the recorded cause of a command's wait, which must agree with the span's numbers.
fn assert_stall(command: &Span) -> &str {
    let number = |attribute| command.number(attribute).unwrap_or_else(|| panic!("{attribute}: {command:#?}"));
    let wait = number("postern.store.write_to_first_byte_us");
    let queued = number("postern.store.queued_us");
    assert!(queued >= 0, "{command:#?}");
    // The clock is read after the write returns; the relay may have the command a little earlier.
    assert!(queued + wait >= HELD.as_micros() as i64, "answered before the relay let it: {command:#?}");
    assert_eq!(number("tcp.retransmits"), 0, "there is no loss on loopback: {command:#?}");
    assert!(number("tcp.rtt_us") >= number("tcp.rtt_least_us"), "{command:#?}");
    assert!(number("tcp.rtt_least_us") < 5_000, "loopback is near: {command:#?}");
    let stall = command.word("postern.store.stall").unwrap_or_else(|| panic!("{command:#?}"));
    let late = [queued, command.duration as i64 - wait];
    if (40_000..=55_000).contains(&wait) && late.iter().all(|other| *other < 30_000) {
        assert_eq!(stall, "delayed_ack", "{command:#?}");
    }
    stall
}

/// Ids of an upstream's trace and span, which no other program makes.
const UPSTREAM: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");

/// The field of a request that a proxy in front sends when it traces (or does not, without the flag).
fn traceparent(flags: &str) -> String {
    format!("\r\ntraceparent: 00-{}-{}-{flags}", UPSTREAM.0, UPSTREAM.1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Jaeger: POSTERN_JAEGER names the binary"]
async fn an_upstreams_context_is_taken_only_where_it_is_accepted() {
    let jaeger = Jaeger::start().await;
    let store = "path = \"HOME/spent\"";
    // Whatever comes: so that the trace is there to be searched for the upstream's ids.
    let mut careful = Scene::new(&jaeger, store, "sample_ratio = 1.0").await;
    assert_eq!(careful.present(&traceparent("01")).await.status, 200);
    jaeger.traces_when("its trace is there", |traces| tunnels(traces).count() == 1).await;
    let everything = jaeger.everything().await;
    assert!(!everything.contains(UPSTREAM.0) && !everything.contains(UPSTREAM.1), "{everything}");
    assert!(everything.contains("postern-gateway"), "{everything}");
    careful.gateway.process.terminate().assert_stopped();

    // Nothing but the upstream can be a reason here.
    let accept = "sample_ratio = 0.0\nslow = \"1m\"\naccept_context = true";
    let mut trusting = Scene::new(&jaeger, store, accept).await;
    assert_eq!(trusting.present("").await.status, 200);
    assert_eq!(trusting.present(&traceparent("00")).await.status, 200);
    assert_eq!(trusting.present(&traceparent("01")).await.status, 200);
    let traces = jaeger.traces_when("the upstream's is there", |traces| tunnels(traces).count() == 2).await;
    assert_eq!(trusting.kept("upstream").await, 1, "one of three was sampled upstream");
    let trace = traces.iter().find(|trace| trace.id == UPSTREAM.0).unwrap_or_else(|| panic!("{traces:#?}"));
    let request = trace.span("request");
    assert_eq!(request.parent, Some((UPSTREAM.0.to_owned(), UPSTREAM.1.to_owned())), "{trace:#?}");
    assert_eq!(trace.kept(), Some("upstream"), "{trace:#?}");
    for name in STAGES {
        assert_eq!(
            trace.span(name).parent,
            Some((trace.id.clone(), request.id.clone())),
            "{name}: {trace:#?}"
        );
    }
    trusting.gateway.process.terminate().assert_stopped();
    jaeger.terminate();
}

/// Most time that a request may take on a busy machine. An exporter waits longer for its collector (10 s), so a request that
/// waited for the exporter takes longer than this.
const USUAL: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Jaeger: POSTERN_JAEGER names the binary"]
async fn a_collector_that_is_away_costs_its_spans_and_nothing_else() {
    let mut jaeger = Jaeger::start().await;
    let home = TempDir::new().unwrap();
    let system = traced_up(&home, &jaeger);
    let echo = target::echo().await.to_string();
    timed_tunnels("with Jaeger", &system, &echo).await;
    jaeger.traces_when("traces are there", |traces| tunnels(traces).count() >= TUNNELS).await;
    metrics_when(system.ports.admin, "they are counted", |metrics| spans(metrics, "exported") > 0).await;

    // It accepts, and answers nothing: worse than one that is gone.
    jaeger.freeze();
    let before = spans(&Metrics::of(system.ports.admin).await, "failed");
    timed_tunnels("while it is frozen", &system, &echo).await;
    let metrics =
        metrics_when(system.ports.admin, "spans are given up", |now| spans(now, "failed") > before).await;
    jaeger.kill();
    let before = spans(&metrics, "failed");
    timed_tunnels("while it is dead", &system, &echo).await;
    metrics_when(system.ports.admin, "spans are dropped", |metrics| spans(metrics, "failed") > before).await;
    let all_have_ended = |metrics: &Metrics| {
        let ended: u64 = ["exported", "failed", "queue_full"].iter().map(|how| spans(metrics, how)).sum();
        // Of each request its own span, five stages and a tunnel; the agent's question for a challenge has fewer.
        ended >= metrics.requests("opened") * 7
    };
    metrics_when(system.ports.admin, "none is left for the next collector", all_have_ended).await;
    // A tunnel's span ends after its request, and waits 200 ms for others.
    tokio::time::sleep(Duration::from_millis(500)).await;

    jaeger.launch().await;
    assert_eq!(jaeger.traces().await.len(), 0, "it keeps no traces");
    // The first batch may still meet the connection that broke.
    eventually("new traces arrive", || async {
        tunnel_through(&system, &echo).await;
        (tunnels(&jaeger.traces().await).count() > 0).then_some(())
    })
    .await;
    let everywhere = metrics_when(system.ports.admin, "every span is accounted for", all_have_ended).await;
    println!("exported {}, failed {}", spans(&everywhere, "exported"), spans(&everywhere, "failed"));
    system.terminate().assert_stopped();
    jaeger.terminate();
}

const TUNNELS: usize = 20;

/// Some requests, none of which waits for the collector.
async fn timed_tunnels(when: &str, system: &Up, target: &str) {
    let mut longest = Duration::ZERO;
    for _ in 0..TUNNELS {
        let began = Instant::now();
        tunnel_through(system, target).await;
        longest = longest.max(began.elapsed());
    }
    println!("{when}: {TUNNELS} requests, the longest took {longest:?}");
    assert!(longest < USUAL, "{when}: {longest:?}");
}

fn spans(metrics: &Metrics, ended: &str) -> u64 {
    metrics.value(&format!("postern_spans_total{{result=\"{ended}\"}}"))
}
