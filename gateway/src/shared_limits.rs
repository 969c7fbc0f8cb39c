//! Limits per source that the gateways of a fleet share (`limits.shared_secret`). Once a second each gateway adds its refusals
//! to counters in the fleet's memcached, and limits the sources that the fleet has refused too often in the current minute.
//!
//! The limits are approximate, and no request waits for them. After a failure each gateway applies its own limits.

use crate::observe::catalogue;
use crate::observe::labels::SharingRound;
use crate::state::Core;
use metrics::{Counter, counter};
use postern_config::Secret;
use postern_daemon::rates::Growth;
use postern_daemon::seldom::Seldom;
use postern_spend::memcached::{FleetCounters, Increment};
use postern_spend::{Backend, Unknown};
use postern_telemetry::metrics::from_zero;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

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
        let mut ticks = interval(ROUND);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
