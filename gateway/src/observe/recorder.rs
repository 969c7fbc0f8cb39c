//! What the gateway records of its requests, through handles made once: a lookup by name costs more than a verification
//! is allowed to.
//!
//! A check is recorded where it ends ([`Checking`]), a request where it is answered ([`Recorder::answered`]), a tunnel
//! where it closes ([`Account`]). The same times serve the metrics, the live page, the trace and the access log.

mod access;
mod account;
mod refusals;
mod trace;

pub(crate) use access::Who;
pub(crate) use account::Account;

use crate::config::AccessLog;
use crate::observe::catalogue;
use crate::observe::labels::{CheckResult, CheckStage, Direction, Outcome, UnknownReason};
use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use access::Access;
use arc_swap::ArcSwap;
use metrics::{Counter, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;
use postern_admin::catalogue::LinkKind;
use postern_admin::live::{Latency, Link, Live};
use postern_proxy::relay::Meter;
use postern_proxy::relay::TunnelEnd;
use postern_spend::memcached::Ended;
use postern_spend::{Backend, Exchange, Unknown};
use postern_telemetry::metrics::{ReadableCounter, ReadableGauge, TracedHistogram, from_zero};
use postern_telemetry::traces::{SamplingDecision, Trace, Tracer};
use refusals::Refusals;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The handles.
pub(crate) struct Recorder {
    outcomes: Vec<ReadableCounter>,
    /// Of requests of peers, which need no verdict of the store.
    peers: Vec<Counter>,
    unknown: Vec<Counter>,
    /// By stage and result.
    checks: Vec<TracedHistogram>,
    /// Tokens that the store recorded as spent, for the live page: the checks that admitted one.
    spent: AtomicU64,
    /// By stage, for the live page.
    spreads: Vec<Latency>,
    tunnels_open: ReadableGauge,
    tunnels_ended: Vec<Histogram>,
    meter: Arc<Meter>,
    connections_open: ReadableGauge,
    /// To each address of a shared store, and what the addresses are called.
    links: Vec<Link>,
    addresses: Vec<String>,
    tracer: ArcSwap<Tracer>,
    refusals: Refusals,
    access: Access,
    /// Why the last check without a verdict had none.
    last_unknown: Mutex<Option<Unknown>>,
}

/// Counts something down when it is dropped, however the task that holds it ends.
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

/// How long a command to the store may take before its TCP facts are read: without traces they are not used.
pub(crate) fn slow(tracer: &Tracer) -> Duration {
    tracer.slow().unwrap_or(Duration::MAX)
}

impl Recorder {
    pub(crate) fn new(live: &Live, backend: &Backend, tracer: Tracer, access: AccessLog) -> Self {
        let checks = CheckStage::ALL.iter().flat_map(|stage| {
            CheckResult::ALL.iter().map(|result| {
                let labels = [(CheckStage::LABEL, stage.as_str()), (CheckResult::LABEL, result.as_str())];
                TracedHistogram::new(catalogue::CHECK_DURATION, catalogue::CHECK_BUCKETS, &labels)
            })
        });
        let outcome = |outcome: &Outcome| counter!(catalogue::REQUESTS, Outcome::LABEL => outcome.as_str());
        let peers =
            |outcome: &Outcome| counter!(catalogue::PEER_REQUESTS, Outcome::LABEL => outcome.as_str());
        let bytes = |way: Direction| counter!(catalogue::TUNNEL_BYTES, Direction::LABEL => way.as_str());
        let ended =
            |end: &TunnelEnd| histogram!(catalogue::TUNNEL_DURATION, TunnelEnd::LABEL => end.as_str());
        let unknown = |reason: &UnknownReason| {
            from_zero(counter!(catalogue::STORE_UNKNOWN, UnknownReason::LABEL => reason.as_str()))
        };
        let addresses: Vec<String> = match backend {
            Backend::Embedded(_) => Vec::new(),
            Backend::Memcached(memcached) => {
                memcached.health().endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
            }
        };
        Self {
            outcomes: Outcome::ALL.iter().map(|each| ReadableCounter::new(outcome(each))).collect(),
            peers: Outcome::ALL.iter().map(peers).collect(),
            unknown: UnknownReason::ALL.iter().map(unknown).collect(),
            checks: checks.collect(),
            spent: AtomicU64::new(0),
            spreads: CheckStage::ALL.iter().map(|_| Latency::default()).collect(),
            tunnels_open: ReadableGauge::new(gauge!(catalogue::TUNNELS_OPEN)),
            tunnels_ended: TunnelEnd::ALL.iter().map(ended).collect(),
            meter: Arc::new(Meter {
                up: ReadableCounter::new(bytes(Direction::Up)),
                down: ReadableCounter::new(bytes(Direction::Down)),
            }),
            connections_open: ReadableGauge::new(gauge!(catalogue::CONNECTIONS_OPEN)),
            links: addresses.iter().map(|address| live.link(LinkKind::Store, address)).collect(),
            addresses,
            tracer: ArcSwap::from_pointee(tracer),
            refusals: Refusals::new(),
            access: Access::new(access),
            last_unknown: Mutex::default(),
        }
    }

    // ---- A request ----

    /// Makes the sampling decision of a request that begins.
    pub(crate) fn sample(&self, headers: &http::HeaderMap) -> SamplingDecision {
        self.tracer.load().decide(headers)
    }

    /// Whether a quick request with this decision would be traced.
    pub(crate) fn keeps(&self, decision: &SamplingDecision) -> bool {
        self.tracer.load().keep(decision, Duration::ZERO, false).is_some()
    }

    /// The client and the target, only if the operator switched that on.
    pub(crate) fn who(&self, client: Option<SocketAddr>, head: &http::request::Parts) -> Who {
        self.access.who(client, head)
    }

    /// From now on the access log holds this.
    pub(crate) fn log_accesses(&self, access: AccessLog) {
        self.access.set(access);
    }

    /// From now on traces go where this one sends them. Returns the one before.
    pub(crate) fn trace_by(&self, tracer: Tracer) -> Arc<Tracer> {
        self.tracer.swap(Arc::new(tracer))
    }

    /// From which time on a command to the store is looked into.
    pub(crate) fn slow(&self) -> Duration {
        slow(&self.tracer.load())
    }

    /// Whether the access log names clients.
    pub(crate) fn names_clients(&self) -> bool {
        self.access.names_clients()
    }

    /// Records the answer to a request that reached a stage. Returns what is recorded when its tunnel ends.
    pub(crate) fn answered(
        &self,
        refusal: Option<&Refusal>,
        is_peers: bool,
        timeline: &Timeline,
        decision: &SamplingDecision,
        who: Who,
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
            if trace::send(trace, timeline, refusal, &self.addresses, slow) {
                self.traced(timeline, &later);
            }
            later
        });
        Account { trace, line: self.access.line(outcome, timeline, who).map(Box::new) }
    }

    /// Records the answer to a request that reached no stage.
    pub(crate) fn turned_away(&self, refusal: &Refusal) {
        self.outcomes[refusal.outcome() as usize].add(1);
        self.refusals.refused(refusal, Instant::now());
        self.access.turned_away(refusal.outcome());
    }

    // ---- What is open ----

    pub(crate) fn connection_opened(&self) -> Open<'_> {
        Open::count(&self.connections_open)
    }

    pub(crate) fn tunnel_opened(&self) -> Open<'_> {
        Open::count(&self.tunnels_open)
    }

    pub(crate) fn tunnel_closed(&self, lasted: Duration, ended: TunnelEnd) {
        self.tunnels_ended[ended as usize].record(lasted);
    }

    /// Where the bytes of tunnels are counted.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    // ---- For maintenance and the live page ----

    /// Attempts to connect to an address of the store that failed.
    pub(crate) fn lost(&self, endpoint: usize, number: u64) {
        if let Some(link) = self.links.get(endpoint).filter(|_| number > 0) {
            link.lost(number);
        }
    }

    /// Logs how many requests were refused since the last line of each class.
    pub(crate) fn log_refusals(&self) {
        self.refusals.log_due(Instant::now());
    }

    pub(crate) fn total(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].total()
    }

    pub(crate) fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    pub(crate) fn latency(&self, stage: CheckStage) -> &Latency {
        &self.spreads[stage as usize]
    }

    pub(crate) fn levels(&self) -> (i64, i64) {
        (self.connections_open.get(), self.tunnels_open.get())
    }

    pub(crate) fn open_tunnels(&self) -> usize {
        usize::try_from(self.tunnels_open.get()).unwrap_or(0)
    }

    // ---- A check ----

    /// One check, from the parsed request to its verdict.
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

    /// The check of a request whose trace is on its way: the histograms lead to it.
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
            // Nothing was sent: a full queue or a small pool, which is not the link's fault.
            Ended::Refused | Ended::Overtaken => {}
            _ => link.answered(on_the_way(exchange)),
        }
    }

    /// Requests that needed the store's verdict, and those of them that got none.
    pub(crate) fn verdicts(&self) -> (u64, u64) {
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
        (had.into_iter().map(|outcome| self.total(outcome)).sum::<u64>() + refused, refused)
    }

    pub(crate) fn last_unknown(&self) -> Option<Unknown> {
        *self.last_unknown.lock()
    }

    fn unknown(&self, unknown: Unknown) {
        if unknown != Unknown::EpochRetired {
            *self.last_unknown.lock() = Some(unknown); // an epoch's end is the token's fault
        }
        self.unknown[reason(unknown) as usize].increment(1);
    }
}

/// A check that has begun. If dropped early because its client went away, it is recorded as abandoned.
pub(crate) struct Checking<'a> {
    recorder: &'a Recorder,
    timeline: &'a mut Timeline,
    open: bool,
}

impl<'a> Checking<'a> {
    pub(crate) fn begin(recorder: &'a Recorder, timeline: &'a mut Timeline) -> Self {
        Self { recorder, timeline, open: true }
    }

    pub(crate) fn timeline(&mut self) -> &mut Timeline {
        self.timeline
    }

    /// The check has its result: admitted, or refused.
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
        self.open = false;
        self.timeline.judge(result);
        self.recorder.checked(self.timeline, result);
    }
}

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        if self.open {
            self.close(CheckResult::Abandoned);
        }
    }
}

/// What a check spent its time on, as far as it came.
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

/// From the command's last byte to the reply's first: without the wait for a connection, or for this process.
fn on_the_way(exchange: &Exchange) -> Duration {
    match (exchange.written, exchange.first_byte) {
        (Some(written), Some(first_byte)) => first_byte.saturating_duration_since(written),
        _ => exchange.took(),
    }
}

/// The label of a reason.
fn reason(unknown: Unknown) -> UnknownReason {
    match unknown {
        Unknown::Unavailable(_) => UnknownReason::Unavailable,
        Unknown::TimedOut => UnknownReason::TimedOut,
        Unknown::DiskFull => UnknownReason::DiskFull,
        Unknown::SyncFailed => UnknownReason::SyncFailed,
        Unknown::Overloaded => UnknownReason::Overloaded,
        Unknown::Rejected => UnknownReason::Rejected,
        Unknown::Garbled => UnknownReason::Garbled,
        Unknown::Unproven => UnknownReason::Unproven,
        Unknown::Unmarked => UnknownReason::Unmarked,
        Unknown::Unwatched => UnknownReason::Unwatched,
        Unknown::EpochRetired => UnknownReason::EpochRetired,
    }
}

#[cfg(test)]
mod tests;
