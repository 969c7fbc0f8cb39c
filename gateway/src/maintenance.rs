//! Periodic background work for the store and the limits that a fleet shares: drops retired records, updates readiness.

use crate::gate::LoggedGate;
use crate::health::{Findings, Recent};
use crate::observe::catalogue;
use crate::observe::labels::{Replica, STORE_COMMAND, STORE_ENDED, SharingRound};
use crate::state::Core;
use metrics::{Counter, counter, gauge};
use postern_config::Secret;
use postern_daemon::rates::Growth;
use postern_daemon::seldom::Seldom;
use postern_spend::memcached::{Ended, FleetCounters, Health, Increment, Memcached, Verb};
use postern_spend::{Backend, Unknown};
use postern_telemetry::catalogue::ADDRESS;
use postern_telemetry::metrics::from_zero;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval at which the store's health is read.
const STORE_TICK: Duration = Duration::from_millis(250);
/// Interval at which expired epochs are dropped, and refusals logged.
const TICK: Duration = Duration::from_secs(10);

/// Returns ticks that are not made up for after a stall: the samples of a window are an interval apart.
fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Drops expired epochs, and logs refusals, at an interval.
async fn drop_expired(core: &Arc<Core>) {
    let mut ticks = ticks(TICK);
    loop {
        ticks.tick().await;
        core.recorder.refusals.log_due(Instant::now());
        let core = Arc::clone(core);
        // The disk may be slow, and must not block this runtime.
        let dropped = tokio::task::spawn_blocking(move || {
            let generation = core.generation.load_full();
            if let Backend::Embedded(store) = &*generation.backend {
                gauge!(catalogue::SPENT_RECORDS).set(store.stats().records as f64);
            }
            generation.backend.drop_expired(UnixSeconds::now(), Instant::now())
        });
        if let Ok(Err(error)) = dropped.await {
            tracing::warn!(%error, "records of retired keys cannot be removed and take up room; it is tried \
                again. Check the disk and the store's directory");
        }
    }
}

pub(crate) struct StoreMaintenance {
    core: Arc<Core>,
    gate: LoggedGate,
    /// Failed attempts to connect to each address at the previous publication.
    connect_failures: Vec<u64>,
    recent: Recent,
}

impl StoreMaintenance {
    pub(crate) fn new(core: Arc<Core>, gate: LoggedGate) -> Self {
        Self { core, gate, connect_failures: Vec::new(), recent: Recent::default() }
    }

    pub(crate) async fn run(self) {
        let core = Arc::clone(&self.core);
        let backend = || Arc::clone(&core.generation.load().backend);
        // Concurrently: a slow disk must not delay the store's readiness.
        tokio::join!(core.memories.watch(backend), drop_expired(&core), self.keep_ready());
    }

    async fn keep_ready(mut self) {
        let mut ticks = ticks(STORE_TICK);
        loop {
            ticks.tick().await;
            self.look_after_store().await;
        }
    }

    async fn look_after_store(&mut self) {
        let (core, now) = (Arc::clone(&self.core), UnixSeconds::now());
        let generation = core.generation.load_full();
        let health = match &*generation.backend {
            Backend::Memcached(memcached) => Some(self.publish(memcached)),
            Backend::Embedded(_) => None,
        };
        core.withdraw_retired(now);
        let keyring = core.keyring.load();
        let offered: Vec<_> = keyring.unretired(now).collect();
        let offering = Arc::clone(&generation);
        _ = tokio::task::spawn_blocking(move || offering.backend.offer(&offered)).await; // the disk may be slow
        // Without a key in use, the store counts as unmarked, too: tokens of the first key can be presented only once the store
        // has a mark for it.
        let types = generation.settings.offer.types;
        let is_requested = keyring.requests_any(types, |key| generation.backend.binding(key), now);
        let requested = if is_requested { Ok(()) } else { Err(Unknown::Unmarked) };
        let findings = Findings {
            ready: generation.backend.ready().and(requested),
            recent: self.recent.tick(core.recorder.verdicts()),
            reason: *core.recorder.last_unknown.lock(),
            health,
            evicting: core.memories.evicting(),
            filling: core.memories.nearly_full(),
            skewed: core.memories.skewed(),
        };
        self.gate.set(findings.condition());
    }

    /// Publishes the counters, and records the connection attempts to each address that failed since the previous call.
    fn publish(&mut self, memcached: &Memcached) -> Health {
        let (totals, health) = (memcached.totals(), memcached.health());
        for verb in Verb::ALL {
            for ended in Ended::ALL.into_iter().filter(|ended| ended.can_follow(verb)) {
                let labels = [(STORE_COMMAND.name, verb.as_str()), (STORE_ENDED.name, ended.as_str())];
                counter!(catalogue::STORE_COMMANDS, &labels).absolute(totals.commands(verb, ended));
            }
        }
        counter!(catalogue::STORE_POOL_WAITS).absolute(totals.pool_waits.load(Relaxed));
        counter!(catalogue::STORE_CACHE_HITS).absolute(totals.cache_hits.load(Relaxed));
        gauge!(catalogue::STORE_CACHE_KEYS).set(health.remembered as f64);
        gauge!(catalogue::STORE_REPLICAS_CLOSED).set(health.closed as f64);
        counter!(catalogue::STORE_MARKS_PLANTED).absolute(totals.marks_planted.load(Relaxed));
        gauge!(catalogue::STORE_BUCKETS_TORN).set(health.torn as f64);
        counter!(catalogue::STORE_OLDER_MARKS).absolute(totals.older_marks.load(Relaxed));
        gauge!(catalogue::STORE_BUCKETS_LACKING).set(health.lacking as f64);
        for (replica, label) in Replica::ALL.iter().enumerate().take(health.replicas()) {
            let is_away = f64::from(u8::from(health.away.contains(&replica)));
            gauge!(catalogue::STORE_REPLICAS_AWAY, Replica::LABEL => label.as_str()).set(is_away);
        }
        self.connect_failures.resize(health.endpoints.len(), 0);
        for (index, (failures, endpoint)) in
            self.connect_failures.iter_mut().zip(&health.endpoints).enumerate()
        {
            let labels = [(ADDRESS.name, endpoint.address.to_string())];
            gauge!(catalogue::STORE_CONNECTIONS, &labels).set(endpoint.connections as f64);
            gauge!(catalogue::STORE_OUTSTANDING, &labels).set(endpoint.outstanding as f64);
            gauge!(catalogue::STORE_CAPACITY, &labels).set(endpoint.capacity as f64);
            let before = std::mem::replace(failures, endpoint.connect_failures);
            // A reopened store counts from 0.
            self.core.recorder.lost(index, endpoint.connect_failures.saturating_sub(before));
        }
        health
    }
}

/// Interval between rounds, and timeout of a round.
const ROUND: Duration = Duration::from_secs(1);
/// Maximum counters per round: those of the networks with the most refusals.
const MOST: usize = 256;
/// Lifetime of a counter: its minute, and another one for clock differences.
const EXPIRES: Duration = Duration::from_secs(120);
/// Minimum interval between warnings that limits are not shared.
const SAYING: Duration = Duration::from_secs(60);
const MINUTE: u64 = 60;

fn counters(backend: &Backend) -> Option<FleetCounters> {
    match backend {
        Backend::Memcached(memcached) => Some(memcached.counters()),
        Backend::Embedded(_) => None,
    }
}

/// Limits per source that the gateways of a fleet share (`limits.shared_secret`). Once a second each gateway adds its refusals
/// to counters in the fleet's memcached, and limits the sources that the fleet has refused too often in the current minute.
///
/// The limits are approximate, and no request waits for them. After a failure each gateway applies its own limits.
pub(crate) struct SharedLimits {
    core: Arc<Core>,
    rounds: Vec<Counter>,
    failures: Seldom,
}

impl SharedLimits {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let rounds = |ended: &SharingRound| {
            from_zero(counter!(catalogue::SHARING_ROUNDS, SharingRound::LABEL => ended.as_str()))
        };
        Self { core, rounds: SharingRound::ALL.iter().map(rounds).collect(), failures: Seldom::every(SAYING) }
    }

    /// Runs until dropped. Returns if the store is not shared.
    pub(crate) async fn run(mut self) {
        let mut backend = Arc::clone(&self.core.generation.load().backend);
        let Some(mut counters) = counters(&backend) else { return };
        let mut ticks = ticks(ROUND);
        loop {
            ticks.tick().await;
            let present = Arc::clone(&self.core.generation.load().backend);
            if !Arc::ptr_eq(&present, &backend)
                && let Some(theirs) = self::counters(&present)
            {
                (backend, counters) = (present, theirs); // a reload has reopened the store
            }
            let secret = self.core.generation.load().settings.limits.shared_secret.clone(); // a reload may change it
            self.core.rates.share(secret.is_some());
            if let Some(secret) = secret {
                self.round(&mut counters, &secret).await;
            }
        }
    }

    async fn round(&mut self, counters: &mut FleetCounters, secret: &Secret) {
        let growth = self.core.rates.growth(MOST);
        if growth.is_empty() {
            return;
        }
        let (secret, minute) = (secret.expose().as_bytes(), UnixSeconds::now().0 / MINUTE);
        let increment = |growth: &Growth| Increment { key: growth.key(secret, minute), by: growth.number };
        let increments: Vec<_> = growth.iter().map(increment).collect();
        match counters.add(&increments, EXPIRES, ROUND).await {
            Ok(totals) if totals.iter().all(Option::is_none) => self.failed(Unknown::Rejected),
            Ok(totals) => self.limit(minute, &growth, &totals),
            Err(reason) => self.failed(reason),
        }
    }

    fn limit(&self, minute: u64, growth: &[Growth], totals: &[Option<u64>]) {
        self.rounds[SharingRound::Shared as usize].increment(1);
        let left = ((minute + 1) * MINUTE).saturating_sub(UnixSeconds::now().0);
        let limits = Arc::clone(&self.core.generation.load().settings.limits);
        for (growth, total) in growth.iter().zip(totals) {
            if let Some(total) = *total {
                self.core.rates.counted_by_fleet(growth, total, Duration::from_secs(left), &limits.source);
            }
        }
    }

    fn failed(&mut self, reason: Unknown) {
        self.rounds[SharingRound::Failed as usize].increment(1);
        if self.failures.due(Instant::now()).is_some() {
            tracing::warn!(
                %reason,
                "the memcached of [store] does not count: limits per source are not shared now, and each gateway has its \
                 own. No client is refused for it. It is tried again every second"
            );
        }
    }
}
