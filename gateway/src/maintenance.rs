//! Periodic background work: fetches keys (`refresh`), drops retired records, updates readiness, shares limits, checks next hops.

use crate::gate::LoggedGate;
use crate::health::{Checks, Findings, Recent};
use crate::keys::refresh::Refresh;
use crate::next_hops;
use crate::observe::catalogue;
use crate::observe::store_metrics::StoreMetrics;
use crate::shared_limits::SharedLimits;
use crate::state::Core;
use metrics::gauge;
use postern_spend::memcached::{Health, Memcached};
use postern_spend::{Backend, Unknown};
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::interval;

/// How often the store's health is read.
const STORE_TICK: Duration = Duration::from_millis(250);
/// How often expired epochs are dropped, and refusals logged.
const TICK: Duration = Duration::from_secs(10);

pub(crate) struct Maintenance {
    pub(crate) keys: Refresh,
    pub(crate) store: StoreMaintenance,
    pub(crate) shared_limits: SharedLimits,
    pub(crate) next_hops: next_hops::Checks,
}

impl Maintenance {
    /// Goes on until it is dropped.
    pub(crate) async fn run(self) {
        // Concurrently: an issuer that does not answer must not delay the store's readiness.
        tokio::join!(self.keys.run(), self.store.run(), self.shared_limits.run(), self.next_hops.run());
    }
}

/// The store's side.
pub(crate) struct StoreMaintenance {
    core: Arc<Core>,
    gate: LoggedGate,
    metrics: StoreMetrics,
    recent: Recent,
}

impl StoreMaintenance {
    pub(crate) fn new(core: Arc<Core>, gate: LoggedGate) -> Self {
        let metrics = StoreMetrics::new(&core.generation.load().backend);
        Self { core, gate, metrics, recent: Recent::default() }
    }

    async fn run(self) {
        let core = Arc::clone(&self.core);
        let backend = || Arc::clone(&core.generation.load().backend);
        tokio::join!(core.memories.watch(backend), self.keep_ready());
    }

    async fn keep_ready(mut self) {
        let (mut store_ticks, mut ticks) = (interval(STORE_TICK), interval(TICK));
        loop {
            tokio::select! {
                _ = store_ticks.tick() => self.look_after_store().await,
                _ = ticks.tick() => self.tick().await,
            }
        }
    }

    async fn tick(&self) {
        self.core.recorder.log_refusals();
        let core = Arc::clone(&self.core);
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

    /// Updates the store's gate, and publishes its counters.
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
        // Also while no key is in use yet: with the first one tokens can be presented only once the store has a mark for it.
        let types = generation.offer.types();
        let is_requested = keyring.requests_any(types, |key| generation.backend.binding(key), now);
        let requested = if is_requested { Ok(()) } else { Err(Unknown::Unmarked) };
        let (total, refused) = core.recorder.verdicts();
        let findings = Findings {
            ready: generation.backend.ready().await.and(requested),
            recent: self.recent.tick(Checks { total, refused }),
            reason: core.recorder.last_unknown(),
            health,
            evicting: core.memories.evicting(),
            filling: core.memories.nearly_full(),
        };
        self.gate.set(findings.condition());
    }

    fn publish(&mut self, memcached: &Memcached) -> Health {
        let health = memcached.health();
        let lost = self.metrics.publish(&memcached.totals(), &health);
        lost.into_iter().for_each(|(endpoint, number)| self.core.recorder.lost(endpoint, number));
        health
    }
}
