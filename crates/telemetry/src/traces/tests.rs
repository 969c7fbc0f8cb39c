//! Tests of kept requests, and of the cost of an unreachable collector.

use super::*;
use http::HeaderValue;
use opentelemetry::trace::SpanKind;
use postern_config::ConfigDuration;

/// The discard port, where nothing listens.
const NOBODY: &str = "http://127.0.0.1:9";

fn tracer(change: impl FnOnce(&mut TracingConfig)) -> Tracer {
    let mut config = TracingConfig { endpoint: Some(NOBODY.into()), sample_ratio: 0.0, ..Default::default() };
    change(&mut config);
    Tracer::start(&config, "test").unwrap()
}

fn with_context(value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", HeaderValue::from_static(value));
    headers.insert("tracestate", HeaderValue::from_static("vendor=whatever"));
    headers
}

const FAST: Duration = Duration::from_millis(1);
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const NOT_SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn kept(tracer: &Tracer, headers: &HeaderMap, check: Duration, unexpected: bool) -> Option<TraceKept> {
    tracer.keep(&tracer.decide(headers), check, unexpected).map(|trace| trace.reason())
}

#[test]
fn what_is_slow_or_an_error_is_kept_whatever_the_dice_said() {
    let (tracer, none) = (tracer(|_| {}), HeaderMap::new());
    assert_eq!(kept(&tracer, &none, FAST, false), None);
    assert_eq!(kept(&tracer, &none, Duration::from_millis(11), false), Some(TraceKept::Slow));
    assert_eq!(kept(&tracer, &none, FAST, true), Some(TraceKept::Error));
}

#[test]
fn without_an_endpoint_nothing_is_kept() {
    let tracer = Tracer::start(&TracingConfig { sample_ratio: 1.0, ..Default::default() }, "test").unwrap();
    assert_eq!(kept(&tracer, &HeaderMap::new(), Duration::from_secs(1), true), None);
    assert_eq!(tracer.slow(), None);
}

#[test]
fn the_dice_keep_their_share() {
    let none = HeaderMap::new();
    let all = tracer(|config| config.sample_ratio = 1.0);
    assert!((0..1000).all(|_| kept(&all, &none, FAST, false) == Some(TraceKept::Sampled)));
    let some = tracer(|config| config.sample_ratio = 0.1);
    let number = (0..100_000).filter(|_| some.decide(&none).sampled).count();
    assert!((9_000..11_000).contains(&number), "{number} of 100,000 at 0.1"); // ten standard deviations
}

#[test]
fn slow_ones_and_errors_are_kept_up_to_a_limit() {
    let (tracer, none) = (tracer(|config| config.most_kept = 5), HeaderMap::new());
    let number = (0..1_000).filter(|_| kept(&tracer, &none, FAST, true).is_some()).count();
    assert!((5..=50).contains(&number), "{number}: the limit is 5 a second, and this is quick");
}

#[test]
fn a_context_is_taken_only_where_it_is_asked_for() {
    let deaf = tracer(|_| {});
    assert_eq!(kept(&deaf, &with_context(SAMPLED), FAST, false), None);
    assert!(deaf.decide(&with_context(SAMPLED)).upstream.is_none());
    let tracer = tracer(|config| config.accept_context = true);
    assert_eq!(kept(&tracer, &with_context(SAMPLED), FAST, false), Some(TraceKept::Upstream));
    assert_eq!(kept(&tracer, &with_context(NOT_SAMPLED), FAST, false), None);
    let decision = tracer.decide(&with_context(NOT_SAMPLED));
    let context = decision.upstream.clone().unwrap();
    assert_eq!(context.trace_state().header(), "", "what others have put into tracestate is not passed on");
    let mut trace = tracer.keep(&decision, FAST, true).unwrap();
    let root = trace.root();
    let now = Instant::now();
    trace.span("part", root, (now, now), SpanKind::Internal, Vec::new());
    let text = format!("{:?}", trace.spans[0]);
    assert!(text.contains("0af7651916cd43dd8448eb211c80319c"), "{text}");
    for bad in ["", "00-0-0-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "\u{e9}"] {
        let value = HeaderValue::from_str(bad).unwrap();
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), value)]);
        assert!(tracer.decide(&headers).upstream.is_none(), "{bad:?}");
    }
}

#[test]
fn a_collector_that_is_away_costs_dropped_spans_and_no_wait() {
    let exporter = crate::metrics::install(&[]).unwrap();
    let tracer = tracer(|config| {
        config.queue = 8;
        config.most_kept = 1_000_000;
    });
    let began = Instant::now();
    for _ in 0..20_000 {
        let mut trace = tracer.keep(&SamplingDecision::default(), FAST, true).unwrap();
        let (root, now) = (trace.root(), Instant::now());
        trace.span("part", root, (now, now), SpanKind::Internal, Vec::new());
        trace.end("request", (now, now), Vec::new(), Some("error"));
    }
    assert!(began.elapsed() < super::exporter::PATIENCE, "nobody waited for the collector");
    let text = exporter.render();
    let dropped =
        text.lines().find_map(|line| line.strip_prefix("postern_spans_total{result=\"queue_full\"} "));
    assert!(dropped.unwrap().parse::<u64>().unwrap() > 30_000, "{text}");
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_with_a_sentence() {
    for (change, said) in [
        ((|c| c.sample_ratio = 1.5) as fn(&mut TracingConfig), "tracing.sample_ratio: is 1.5"),
        (|c| c.sample_ratio = f64::NAN, "tracing.sample_ratio"),
        (|c| c.queue = 0, "tracing.queue: is 0"),
        (|c| c.endpoint = Some("127.0.0.1:4318".into()), "tracing.endpoint"),
        (|c| c.endpoint = Some("http://me:secret@127.0.0.1:4318".into()), "holds a name or password"),
        (|c| c.endpoint = Some("https://collector.example:4318".into()), "run one next to the gateway"),
    ] {
        let mut config = TracingConfig { slow: ConfigDuration::millis(1), ..Default::default() };
        change(&mut config);
        let error = Tracer::start(&config, "test").unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn each_second_has_its_number_and_no_more() {
    let (limit, start) = (Limit::per_second(3), Instant::now());
    let allowed = |at: u64| {
        let now = start + Duration::from_millis(at);
        (0..1000).filter(|_| limit.allows_at(now)).count()
    };
    assert_eq!([allowed(0), allowed(999), allowed(1000), allowed(5000)], [3, 0, 3, 3]);
    assert!(!Limit::per_second(0).allows());
}
