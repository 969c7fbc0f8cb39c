//! Traces, sent over OTLP to a collector such as Jaeger.
//!
//! ```text
//! request begins ── Tracer::decide ── at random, and by an upstream's context      some nanoseconds
//! request ended  ── Tracer::keep ──── sampled, slow or an error: a Trace       else nothing was done
//! Trace ── spans from the times that were measured anyway ── queue ── exporter ── collector
//! ```
//!
//! Spans are made after the fact, from times that the metrics need too. A request that is not kept costs one random
//! number, and a slow request is kept with all its stages, whatever the sampling decision was. The queue is bounded, and
//! no request waits for it.
//!
//! A span contains names and numbers of this program and addresses of the configuration, as listed in
//! docs/security/telemetry.md, and no client, destination or token.

mod exporter;

pub use exporter::{TracerError, TracingConfig};
pub use opentelemetry::Value;
pub use opentelemetry::trace::SpanKind;

use crate::catalogue::from_zero;
use crate::own::{self, TraceKept};
use exporter::Exporter;
use http::HeaderMap;
use metrics::{Counter, counter};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The sampler and sender of traces. Clones share one exporter.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Active>>);

#[derive(Debug)]
struct Active {
    sample_ratio: f64,
    slow: Duration,
    accept_context: bool,
    limit: Limit,
    exporter: Exporter,
    kept: Vec<Counter>,
}

/// The sampling decision, made at the start of a request.
#[derive(Clone, Debug, Default)]
pub struct SamplingDecision {
    sampled: bool,
    /// The parent span that the request named.
    upstream: Option<SpanContext>,
}

impl Tracer {
    /// Starts a tracer for one daemon. Without an endpoint it traces nothing. Does not wait for the collector, which may be
    /// unreachable at any time.
    pub fn start(config: &TracingConfig, service: &'static str) -> Result<Self, TracerError> {
        config.check()?;
        let Some(endpoint) = &config.endpoint else { return Ok(Self::default()) };
        let kept = |kept: &TraceKept| from_zero(counter!(own::TRACES, TraceKept::LABEL => kept.as_str()));
        Ok(Self(Some(Arc::new(Active {
            sample_ratio: config.sample_ratio,
            slow: config.slow.get(),
            accept_context: config.accept_context,
            limit: Limit::per_second(config.most_kept),
            exporter: Exporter::start(endpoint, service, config.queue)?,
            kept: TraceKept::ALL.iter().map(kept).collect(),
        }))))
    }

    /// Makes the sampling decision at the start of a request.
    #[inline]
    pub fn decide(&self, headers: &HeaderMap) -> SamplingDecision {
        let Some(active) = &self.0 else { return SamplingDecision::default() };
        let sampled = active.sample_ratio > 0.0 && rand::random::<f64>() < active.sample_ratio;
        let upstream = if active.accept_context { upstream(headers) } else { None };
        SamplingDecision { sampled, upstream }
    }

    /// Returns a trace for a request that has ended, if it is to be kept: it was sampled here or upstream, took longer than the
    /// threshold, or ended in an unexpected error. All but those sampled here are subject to a limit per second.
    #[inline]
    pub fn keep(&self, decision: &SamplingDecision, took: Duration, unexpected: bool) -> Option<Trace> {
        let active = self.0.as_ref()?;
        let sampled_upstream = decision.upstream.as_ref().is_some_and(SpanContext::is_sampled);
        let reason = if unexpected {
            TraceKept::Error
        } else if took > active.slow {
            TraceKept::Slow
        } else if decision.sampled {
            TraceKept::Sampled
        } else if sampled_upstream {
            TraceKept::Upstream
        } else {
            return None;
        };
        // `sample_ratio` bounds sampled traces; the other reasons can apply to every request.
        if !decision.sampled && !active.limit.allows() {
            active.count(TraceKept::OverLimit);
            return None;
        }
        active.count(reason);
        Some(Trace::new(self.clone(), decision.upstream.as_ref(), reason))
    }

    /// Returns the threshold of a slow request. `None` if traces are off.
    pub fn slow(&self) -> Option<Duration> {
        self.0.as_ref().map(|active| active.slow)
    }

    /// `true` if no other clone and no trace of it is left.
    pub fn is_alone(&self) -> bool {
        self.0.as_ref().is_none_or(|active| Arc::strong_count(active) == 1)
    }

    fn send(&self, spans: Vec<SpanData>) -> bool {
        self.0.as_ref().is_some_and(|active| active.exporter.send(spans))
    }
}

impl Active {
    fn count(&self, kept: TraceKept) {
        self.kept[kept as usize].increment(1);
    }
}

/// Parses the W3C trace context of a request (<https://www.w3.org/TR/trace-context/>), if it has a valid one.
fn upstream(headers: &HeaderMap) -> Option<SpanContext> {
    struct Fields<'a>(&'a HeaderMap);
    impl Extractor for Fields<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            // Only `traceparent`: the contents of a `tracestate` are unknown, and would be sent to the collector.
            if key == "traceparent" { self.0.get(key)?.to_str().ok() } else { None }
        }

        fn keys(&self) -> Vec<&str> {
            Vec::new()
        }
    }
    headers.get("traceparent")?;
    let context = TraceContextPropagator::new().extract(&Fields(headers));
    let found = context.span().span_context().clone();
    found.is_valid().then_some(found)
}

/// A limit on events per second: in an outage every request is an error, and a collector needs only a few of them. Called only
/// for rare events or, in an outage, to reject them.
#[derive(Debug)]
struct Limit {
    most: u32,
    /// (start of the current second, events allowed in it)
    second: Mutex<(Option<Instant>, u32)>,
}

impl Limit {
    fn per_second(most: u32) -> Self {
        Self { most, second: Mutex::new((None, 0)) }
    }

    fn allows(&self) -> bool {
        self.allows_at(Instant::now())
    }

    fn allows_at(&self, now: Instant) -> bool {
        let (began, allowed) = &mut *self.second.lock();
        if began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
            (*began, *allowed) = (Some(now), 0);
        }
        *allowed += u32::from(*allowed <= self.most);
        *allowed <= self.most
    }
}

/// An attribute of a span: one of the names that [`names!`](crate::names!) declares, and a number or a word.
pub type Attribute = (&'static str, Value);

#[derive(Clone, Debug)]
pub struct Trace {
    tracer: Tracer,
    id: TraceId,
    root: SpanId,
    parent: Option<SpanContext>,
    reason: TraceKept,
    clock: Clock,
    spans: Vec<SpanData>,
}

/// A span of a trace, as a parent of others.
#[derive(Clone, Copy, Debug)]
pub struct Span(SpanId);

/// The wall clock at a moment of the monotonic clock, so that all spans of a trace agree.
#[derive(Clone, Copy, Debug)]
struct Clock(Instant, SystemTime);

impl Clock {
    fn at(self, moment: Instant) -> SystemTime {
        let since = moment.saturating_duration_since(self.0);
        let before: Duration = self.0.saturating_duration_since(moment);
        self.1 + since - before
    }
}

impl Trace {
    fn new(tracer: Tracer, upstream: Option<&SpanContext>, reason: TraceKept) -> Self {
        let random = || TraceId::from(rand::random_range(1..=u128::MAX)); // zero is no id
        Self {
            tracer,
            id: upstream.map_or_else(random, SpanContext::trace_id),
            root: new_id(),
            parent: upstream.cloned(),
            reason,
            clock: Clock(Instant::now(), SystemTime::now()),
            spans: Vec::new(),
        }
    }

    /// Returns the request's own span, the parent of its stages.
    pub fn root(&self) -> Span {
        Span(self.root)
    }

    /// Returns the id that the collector receives.
    pub(crate) fn id(&self) -> TraceId {
        self.id
    }

    pub fn reason(&self) -> TraceKept {
        self.reason
    }

    pub fn span(
        &mut self,
        name: &'static str,
        parent: Span,
        (from, to): (Instant, Instant),
        kind: SpanKind,
        attributes: Vec<Attribute>,
    ) -> Span {
        let id = new_id();
        self.push(id, (parent.0, false), name, (from, to), kind, attributes, Status::Unset);
        Span(id)
    }

    /// Adds the request's own span and sends the trace. Returns `false` if the queue to the collector had no room for all of it.
    /// [`Trace::later`] can send spans that end later.
    pub fn end(
        mut self,
        name: &'static str,
        times: (Instant, Instant),
        attributes: Vec<Attribute>,
        error: Option<&'static str>,
    ) -> bool {
        let status = error.map_or(Status::Unset, Status::error);
        let parent = self.parent.as_ref().map_or((SpanId::INVALID, false), |parent| (parent.span_id(), true));
        self.push(self.root, parent, name, times, SpanKind::Server, attributes, status);
        self.tracer.clone().send(std::mem::take(&mut self.spans))
    }

    /// Returns the same trace without its spans, for a span that ends after the request was answered.
    pub fn later(&self) -> Self {
        Self { spans: Vec::new(), ..self.clone() }
    }

    pub fn send(mut self) {
        self.tracer.clone().send(std::mem::take(&mut self.spans));
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of a span")]
    fn push(
        &mut self,
        id: SpanId,
        (parent_span_id, parent_span_is_remote): (SpanId, bool),
        name: &'static str,
        (from, to): (Instant, Instant),
        span_kind: SpanKind,
        attributes: Vec<Attribute>,
        status: Status,
    ) {
        self.spans.push(SpanData {
            span_context: SpanContext::new(self.id, id, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id,
            parent_span_is_remote,
            span_kind,
            name: name.into(),
            start_time: self.clock.at(from),
            end_time: self.clock.at(to),
            attributes: attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: InstrumentationScope::builder("postern").build(),
        });
    }
}

fn new_id() -> SpanId {
    SpanId::from(rand::random_range(1..=u64::MAX))
}

#[cfg(test)]
mod tests;
