//! Spans of a request, made from its timeline. They do not identify the client, the target or the token.

use crate::observe::labels::Outcome;
use crate::observe::spans;
use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use http::StatusCode;
use postern_spend::memcached::Verb;
use postern_spend::{Exchange, ExchangeLog};
use postern_telemetry::traces::{Attribute, Span, Trace};
use std::time::{Duration, Instant};

/// Makes and sends the spans of an answered request; returns `false` if there was no room for all of them.
pub(super) fn send(
    mut trace: Trace,
    timeline: &Timeline,
    (refusal, status): (Option<&Refusal>, StatusCode),
    addresses: &[String],
    slow: Duration,
) -> bool {
    let root = trace.root();
    for stage in Stage::ALL {
        let Some(times) = timeline.of(stage) else { continue };
        let (name, kind, log) = match stage {
            Stage::Parse => (spans::PARSE, spans::Kind::Internal, None),
            Stage::Check => (spans::CHECK, spans::Kind::Internal, Some(&timeline.check_log)),
            Stage::Verify => (spans::VERIFY, spans::Kind::Internal, None),
            Stage::Spend => (spans::SPEND, spans::Kind::Internal, Some(&timeline.spend_log)),
            Stage::Dial => (spans::DIAL, spans::Kind::Client, None),
        };
        let waited = log.filter(|log| !log.pool.is_zero());
        let attributes = waited.map(|log| (spans::POOL_WAIT, micros(log.pool))).into_iter().collect();
        let span = trace.span(name, root, times, kind, attributes);
        log.into_iter().flat_map(ExchangeLog::exchanges).for_each(|exchange| {
            command(&mut trace, span, exchange, addresses, slow);
        });
    }
    let outcome = refusal.map_or(Outcome::Opened, Refusal::outcome);
    let mut attributes: Vec<Attribute> = vec![
        (spans::OUTCOME, outcome.as_str().into()),
        (spans::KEPT, trace.reason().as_str().into()),
        (spans::STATUS, i64::from(status.as_u16()).into()),
    ];
    if let Some(Refusal::StoreUnknown(unknown) | Refusal::StoreDown(unknown)) = refusal {
        attributes.push((spans::UNKNOWN_REASON, unknown.reason().into()));
    }
    attributes.extend(timeline.judged.map(|(_, result)| (spans::RESULT, result.as_str().into())));
    let error = outcome.is_error().then_some(outcome.as_str());
    trace.end(spans::REQUEST, (timeline.began, Instant::now()), attributes, error)
}

/// Adds the span of a store command: its timing, and TCP facts if it was slow.
fn command(trace: &mut Trace, parent: Span, exchange: &Exchange, addresses: &[String], slow: Duration) {
    let name = match exchange.verb {
        Verb::Get => spans::STORE_GET,
        Verb::Add => spans::STORE_ADD,
    };
    let mut attributes: Vec<Attribute> = vec![
        (spans::DB_SYSTEM, "memcached".into()),
        (spans::DB_OPERATION, exchange.verb.as_str().into()),
        (spans::STORE_RESULT, exchange.ended.as_str().into()),
    ];
    if let Some(address) = exchange.endpoint.and_then(|endpoint| addresses.get(usize::from(endpoint))) {
        attributes.push((spans::SERVER, address.clone().into()));
    }
    if let Some(written) = exchange.written {
        attributes.push((spans::STORE_QUEUED, micros(written.saturating_duration_since(exchange.began))));
        if let Some(first_byte) = exchange.first_byte {
            let wait = first_byte.saturating_duration_since(written);
            attributes.push((spans::STORE_FIRST_BYTE, micros(wait)));
        }
    }
    if let Some(stall) = exchange.stall(slow) {
        attributes.push((spans::STORE_STALL, stall.as_str().into()));
    }
    if let Some(tcp) = &exchange.tcp {
        attributes.extend([
            (spans::TCP_RTT, micros(tcp.rtt)),
            (spans::TCP_RTT_LEAST, micros(tcp.rtt_min)),
            (spans::TCP_RTT_VARIATION, micros(tcp.rtt_var)),
            (spans::TCP_RETRANSMITS, i64::from(tcp.retransmits).into()),
            (spans::TCP_UNACKNOWLEDGED, i64::from(tcp.unacknowledged).into()),
            (spans::TCP_LOST, i64::from(tcp.lost).into()),
        ]);
    }
    trace.span(name, parent, (exchange.began, exchange.finished), spans::Kind::Client, attributes);
}

fn micros(time: Duration) -> postern_telemetry::traces::Value {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX).into()
}
