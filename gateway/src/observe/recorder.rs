//! Metrics, traces and logs of requests. Metric handles are created once: a lookup by name costs more than a verification may
//! cost.
//!
//! A check is recorded at its end ([`Checking`]), a request at its answer ([`Recorder::answered`]), a tunnel at its close
//! ([`Account`]). Metrics, live page, trace and access log share the same measurements.

mod access;
mod trace;

pub(crate) use access::{Account, Who};

use crate::config::AccessLog;
use crate::health::Checks;
use crate::observe::catalogue;
use crate::observe::labels::{CheckResult, CheckStage, Direction, Outcome, UNKNOWN_REASON};
use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use access::{Line, Refusals};
use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode};
use metrics::{Counter, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;
use postern_daemon::admin::catalogue::LinkKind;
use postern_daemon::admin::live::{Latency, Link, Live};
use postern_proxy::relay::Meter;
use postern_proxy::relay::TunnelEnd;
use postern_proxy::udp::relay::DatagramMeter;
use postern_spend::memcached::Ended;
use postern_spend::{Backend, Exchange, Unknown};
use postern_telemetry::metrics::{ReadableCounter, ReadableGauge, TracedHistogram, from_zero};
use postern_telemetry::traces::{SamplingDecision, Trace, Tracer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub(crate) struct Recorder {
    outcomes: Vec<ReadableCounter>,
    /// Requests of peers, which need no verdict from the store.
    peers: Vec<Counter>,
    /// Indexed by [`Unknown::index`].
    unknown: [Counter; Unknown::REASONS.len()],
    /// Indexed by stage and result.
    checks: Vec<TracedHistogram>,
    /// Tokens recorded as spent by admitted checks, for the live page.
    pub(crate) spent: AtomicU64,
    /// Indexed by stage, for the live page.
    pub(crate) spreads: Vec<Latency>,
    pub(crate) tunnels_open: ReadableGauge,
    tunnels_ended: Vec<Histogram>,
    pub(crate) meter: Arc<Meter>,
    pub(super) udp_open: ReadableGauge,
    pub(crate) datagrams: Arc<DatagramMeter>,
    pub(crate) connections_open: ReadableGauge,
    /// One link per address of a shared store; `addresses` has their names.
    links: Vec<Link>,
    addresses: Vec<String>,
    pub(crate) tracer: ArcSwap<Tracer>,
    pub(crate) refusals: Refusals,
    /// Latest reason for a missing verdict, except a retired epoch.
    pub(crate) last_unknown: Mutex<Option<Unknown>>,
}

/// Guard that decrements a gauge when dropped, including on cancellation of the task that holds it.
pub(crate) struct Open<'a>(&'a ReadableGauge);

impl<'a> Open<'a> {
    fn count(level: &'a ReadableGauge) -> Self {
        level.add(1);
        Self(level)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// Returns the duration from which a store command's TCP facts are read; `Duration::MAX` without traces, which alone use them.
pub(crate) fn slow(tracer: &Tracer) -> Duration {
    tracer.slow().unwrap_or(Duration::MAX)
}

impl Recorder {
    pub(crate) fn new(live: &Live, backend: &Backend, tracer: Tracer) -> Self {
        let checks = CheckStage::ALL.iter().flat_map(|stage| {
            CheckResult::ALL.iter().map(|result| {
                let labels = [(CheckStage::LABEL, stage.as_str()), (CheckResult::LABEL, result.as_str())];
                TracedHistogram::new(catalogue::CHECK_DURATION, catalogue::CHECK_BUCKETS, &labels)
            })
        });
        let outcome = |outcome: &Outcome| counter!(catalogue::REQUESTS, Outcome::LABEL => outcome.as_str());
        let peers =
            |outcome: &Outcome| counter!(catalogue::PEER_REQUESTS, Outcome::LABEL => outcome.as_str());
        let ended =
            |end: &TunnelEnd| histogram!(catalogue::TUNNEL_DURATION, TunnelEnd::LABEL => end.as_str());
        let unknown = |reason: &'static str| {
            from_zero(counter!(catalogue::STORE_UNKNOWN, UNKNOWN_REASON.name => reason))
        };
        let addresses: Vec<String> = match backend {
            Backend::Embedded(_) => Vec::new(),
            Backend::Memcached(memcached) => {
                memcached.health().endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
            }
        };
        let both_ways = |metric: &'static str| {
            let one =
                |way: Direction| ReadableCounter::new(counter!(metric, Direction::LABEL => way.as_str()));
            Meter { up: one(Direction::Up), down: one(Direction::Down) }
        };
        let (meter, Meter { up, down }) =
            (Arc::new(both_ways(catalogue::TUNNEL_BYTES)), both_ways(catalogue::DATAGRAMS));
        let dropped = both_ways(catalogue::DATAGRAMS_DROPPED);
        let datagrams = Arc::new(DatagramMeter { bytes: Arc::clone(&meter), up, down, dropped });
        Self {
            outcomes: Outcome::ALL.iter().map(|each| ReadableCounter::new(outcome(each))).collect(),
            peers: Outcome::ALL.iter().map(peers).collect(),
            unknown: Unknown::REASONS.map(unknown),
            checks: checks.collect(),
            spent: AtomicU64::new(0),
            spreads: CheckStage::ALL.iter().map(|_| Latency::default()).collect(),
            tunnels_open: ReadableGauge::new(gauge!(catalogue::TUNNELS_OPEN)),
            tunnels_ended: TunnelEnd::ALL.iter().map(ended).collect(),
            meter,
            udp_open: ReadableGauge::new(gauge!(catalogue::UDP_TUNNELS_OPEN)),
            datagrams,
            connections_open: ReadableGauge::new(gauge!(catalogue::CONNECTIONS_OPEN)),
            links: addresses.iter().map(|address| live.link(LinkKind::Store, address)).collect(),
            addresses,
            tracer: ArcSwap::from_pointee(tracer),
            refusals: Refusals::new(),
            last_unknown: Mutex::default(),
        }
    }

    pub(crate) fn sample(&self, headers: &HeaderMap) -> SamplingDecision {
        self.tracer.load().decide(headers)
    }

    /// Returns `true` if a fast, successful request with this decision would be traced.
    pub(crate) fn keeps(&self, decision: &SamplingDecision) -> bool {
        self.tracer.load().keep(decision, Duration::ZERO, false).is_some()
    }

    pub(crate) fn slow(&self) -> Duration {
        slow(&self.tracer.load())
    }

    /// Records the answer to a request that reached a stage, or the refusal and its status. Returns the account that records the
    /// end of its tunnel.
    pub(crate) fn answered(
        &self,
        (refusal, status): (Option<&Refusal>, StatusCode),
        is_peers: bool,
        timeline: &Timeline,
        decision: &SamplingDecision,
        who: Option<Who>,
    ) -> Account {
        let outcome = refusal.map_or(Outcome::Opened, Refusal::outcome);
        if is_peers {
            self.peers[outcome as usize].increment(1);
        } else {
            self.outcomes[outcome as usize].add(1);
        }
        if let Some(refusal) = refusal {
            self.refusals.refused(refusal, timeline.began);
        }
        let tracer = self.tracer.load();
        let kept = tracer.keep(decision, timeline.check().unwrap_or_default(), outcome.is_error());
        let trace = kept.map(|trace| {
            let later = Box::new(trace.later());
            let slow = tracer.slow().unwrap_or_default();
            if trace::send(trace, timeline, (refusal, status), &self.addresses, slow) {
                self.traced(timeline, &later);
            }
            later
        });
        Account { trace, line: who.map(|who| Box::new(Line::new(outcome, timeline, who))) }
    }

    /// Records the answer to a request that reached no stage.
    pub(crate) fn turned_away(&self, refusal: &Refusal, log: AccessLog) {
        self.outcomes[refusal.outcome() as usize].add(1);
        self.refusals.refused(refusal, Instant::now());
        if log != AccessLog::Off {
            Line::write_turned_away(refusal.outcome());
        }
    }

    pub(crate) fn connection_opened(&self) -> Open<'_> {
        Open::count(&self.connections_open)
    }

    pub(crate) fn tunnel_opened(&self) -> Open<'_> {
        Open::count(&self.tunnels_open)
    }

    pub(crate) fn udp_opened(&self) -> Open<'_> {
        Open::count(&self.udp_open)
    }

    pub(crate) fn tunnel_closed(&self, lasted: Duration, ended: TunnelEnd) {
        self.tunnels_ended[ended as usize].record(lasted);
    }

    /// Records failed attempts to connect to an address of the store.
    pub(crate) fn lost(&self, endpoint: usize, number: u64) {
        if let Some(link) = self.links.get(endpoint).filter(|_| number > 0) {
            link.lost(number);
        }
    }

    pub(crate) fn total(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].total()
    }

    /// Records a finished check: its result, the duration of its stages and its store commands.
    fn checked(&self, timeline: &Timeline, result: CheckResult) {
        if result == CheckResult::Admitted {
            self.spent.fetch_add(1, Relaxed);
        }
        for (stage, time) in stages(timeline) {
            self.check(stage, result).record(time);
            self.spreads[stage as usize].record(time);
        }
        let exchanges = timeline.check_log.exchanges().iter().chain(timeline.spend_log.exchanges());
        exchanges.for_each(|exchange| self.exchanged(exchange));
    }

    /// Attaches a sent trace as an exemplar to the histograms of its check.
    fn traced(&self, timeline: &Timeline, trace: &Trace) {
        let Some((_, result)) = timeline.judged else { return };
        for (stage, time) in stages(timeline) {
            self.check(stage, result).name(time, trace);
        }
    }

    fn check(&self, stage: CheckStage, result: CheckResult) -> &TracedHistogram {
        &self.checks[stage as usize * CheckResult::ALL.len() + result as usize]
    }

    fn exchanged(&self, exchange: &Exchange) {
        let Some(link) = exchange.endpoint.and_then(|endpoint| self.links.get(usize::from(endpoint))) else {
            return;
        };
        match exchange.ended {
            Ended::TimedOut | Ended::Broken => link.lost(1),
            // Refused: nothing was sent, for lack of a connection or a place in the queue. Overtaken: other replicas decided
            // first. The link is at fault in neither case.
            Ended::Refused | Ended::Overtaken => {}
            _ => link.answered(on_the_way(exchange)),
        }
    }

    /// Returns the number of requests that needed the store's verdict, and of those that got none.
    pub(crate) fn verdicts(&self) -> Checks {
        use Outcome as O;
        let refused = self.total(O::StoreUnknown);
        let had = [
            O::Opened,
            O::AlreadySpent,
            O::Void,
            O::DialUnresolved,
            O::DialRefused,
            O::DialTimeout,
            O::Looped,
            O::UpstreamBroken,
            O::BodyFailed,
        ];
        let verdicts: u64 = had.into_iter().map(|outcome| self.total(outcome)).sum();
        Checks { total: verdicts + refused, refused }
    }

    fn unknown(&self, unknown: Unknown) {
        if unknown != Unknown::EpochRetired {
            *self.last_unknown.lock() = Some(unknown); // a retired epoch is no fault of the store
        }
        self.unknown[unknown.index()].increment(1);
    }
}

/// A running check. If dropped early because its client disconnected, it is recorded as abandoned.
pub(crate) struct Checking<'a> {
    pub(crate) recorder: &'a Recorder,
    pub(crate) timeline: &'a mut Timeline,
}

impl Checking<'_> {
    /// Ends the check as admitted, or with the result for `refusal`.
    pub(crate) fn end(mut self, refusal: Option<&Refusal>) {
        let result = match refusal {
            None => CheckResult::Admitted,
            Some(Refusal::AlreadySpent) => CheckResult::Spent,
            Some(Refusal::StoreUnknown(unknown)) => {
                self.recorder.unknown(*unknown);
                CheckResult::Unknown
            }
            Some(_) => CheckResult::Invalid,
        };
        self.close(result);
    }

    fn close(&mut self, result: CheckResult) {
        self.timeline.judge(result);
        self.recorder.checked(self.timeline, result);
    }
}

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        if self.timeline.judged.is_none() {
            self.close(CheckResult::Abandoned);
        }
    }
}

fn stages(timeline: &Timeline) -> impl Iterator<Item = (CheckStage, Duration)> + use<> {
    // Without a pool there is no wait to record.
    let pool_wait = Some(timeline.pool_wait()).filter(|wait| !wait.is_zero());
    let stages = [
        (CheckStage::PoolWait, pool_wait),
        (CheckStage::Get, timeline.took(Stage::Check)),
        (CheckStage::Verify, timeline.took(Stage::Verify)),
        (CheckStage::Add, timeline.took(Stage::Spend)),
        (CheckStage::Total, timeline.check()),
    ];
    stages.into_iter().filter_map(|(stage, time)| Some((stage, time?)))
}

/// Returns the time from the command's last byte to the reply's first, without waits for a connection or for this process; the
/// whole duration if one of the two is unknown.
fn on_the_way(exchange: &Exchange) -> Duration {
    match (exchange.written, exchange.first_byte) {
        (Some(written), Some(first_byte)) => first_byte.saturating_duration_since(written),
        _ => exchange.took(),
    }
}

#[cfg(test)]
mod tests;
