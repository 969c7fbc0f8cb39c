//! One trace: a request and what it is made of.

use super::Tracer;
use crate::own::TraceKept;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::time::{Duration, Instant, SystemTime};

/// A property of a span: one of the names that [`names!`](crate::names!) declares, and a number or a word.
pub type Attribute = (&'static str, Value);

/// A trace that is being put together.
#[derive(Clone, Debug)]
pub struct Trace {
    tracer: Tracer,
    id: TraceId,
    root: SpanId,
    parent: Option<SpanContext>,
    reason: TraceKept,
    clock: Clock,
    pub(super) spans: Vec<SpanData>,
}

/// A span of a trace, as a parent of others.
#[derive(Clone, Copy, Debug)]
pub struct Span(SpanId);

/// The wall clock at a moment of the other one, so that all spans of a trace agree.
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
    pub(super) fn new(tracer: Tracer, upstream: Option<&SpanContext>, reason: TraceKept) -> Self {
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

    /// The request's own span: what its stages are children of.
    #[must_use]
    pub fn root(&self) -> Span {
        Span(self.root)
    }

    /// Its id, as the collector has it.
    pub(crate) fn id(&self) -> TraceId {
        self.id
    }

    /// Why this trace is kept.
    #[must_use]
    pub fn reason(&self) -> TraceKept {
        self.reason
    }

    /// Adds a span.
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

    /// Adds the request's own span, and sends the trace: false when the queue to the collector had no room for all of it.
    /// What comes later can be sent by [`Trace::later`].
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

    /// The same trace without its spans, for a span that ends after the request was answered.
    #[must_use]
    pub fn later(&self) -> Self {
        Self { spans: Vec::new(), ..self.clone() }
    }

    /// Sends the spans that were added.
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
