//! What goes on beside the requests: keys are fetched, retired records dropped, gauges set, readiness told.

use crate::config::LossPolicy;
use crate::gateway::Core;
use crate::keyring::Lifetimes;
use crate::source::{FetchError, Fetched, Source};
use crate::store_metrics::StoreMetrics;
use metrics::gauge;
use postern_service::admin::Gate;
use postern_service::host::Host;
use postern_service::live::Link;
use postern_service::names::{self, KeyPhase, LinkKind};
use postern_spend::Backend;
use postern_spend::memcached::Memcached;
use postern_token::{TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, interval, sleep_until};

/// The first wait after a failed fetch; it doubles up to the poll interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// How often the store is asked how it is.
const STORE_TICK: Duration = Duration::from_millis(250);
/// How often records are looked through for expired epochs, and gauges set.
const TICK: Duration = Duration::from_secs(10);

pub(crate) struct Upkeep {
    core: Arc<Core>,
    source: Source,
    /// To the issuer, unless the keys come from a file.
    issuer: Option<Link>,
    lifetimes: Lifetimes,
    poll: Duration,
    keys_gate: Gate,
    store_gate: Gate,
    store_metrics: StoreMetrics,
    on_loss: LossPolicy,
    /// Keys of which the store has lost records, and whose tokens are therefore not taken any more.
    lost: Vec<TokenKeyId>,
}

impl Upkeep {
    pub(crate) fn new(
        core: Arc<Core>,
        source: Source,
        lifetimes: Lifetimes,
        poll: Duration,
        on_loss: LossPolicy,
        host: &Host,
    ) -> Self {
        let (keys_gate, store_gate) = (host.readiness.gate("keys"), host.readiness.gate("store"));
        let store_metrics = StoreMetrics::new(&core.backend);
        let issuer = source.address().map(|address| host.live.link(LinkKind::Issuer, &address));
        Self {
            core,
            source,
            issuer,
            lifetimes,
            poll,
            keys_gate,
            store_gate,
            store_metrics,
            on_loss,
            lost: Vec::new(),
        }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut reloads = self.core.shutdown.reloads();
        let mut store_ticks = interval(STORE_TICK);
        let (mut next_fetch, mut next_tick, mut retry) = (Instant::now(), Instant::now(), FIRST_RETRY);
        loop {
            tokio::select! {
                () = sleep_until(next_tick) => {
                    self.tick().await;
                    next_tick = Instant::now() + TICK;
                }
                _ = store_ticks.tick() => self.look_after_store().await,
                () = sleep_until(next_fetch) => {
                    let succeeded = self.fetch().await;
                    let wait = if succeeded { self.poll } else { retry.min(self.poll) };
                    retry = if succeeded { FIRST_RETRY } else { wait * 2 };
                    // A file that was read once is not read again until the operator asks for it.
                    let again = !succeeded || self.source.is_polled();
                    next_fetch = Instant::now() + if again { wait } else { Duration::from_secs(u64::from(u32::MAX)) };
                }
                () = reloads.next() => next_fetch = Instant::now(),
            }
        }
    }

    /// Asks for the keys; whether they could be had. On failure the known ones stay.
    async fn fetch(&mut self) -> bool {
        let (now, asked) = (UnixSeconds::now(), Instant::now());
        let fetched = self.source.fetch().await;
        match (&self.issuer, &fetched) {
            (Some(issuer), Err(FetchError::Request { .. })) => issuer.lost(1),
            (Some(issuer), _) => issuer.answered(asked.elapsed()),
            (None, _) => {}
        }
        let updated = match fetched {
            Ok(None) => Ok(None),
            Ok(Some(Fetched { directory, etag })) => {
                let updated = self.core.keyring.load().updated(&directory, self.lifetimes, now);
                updated.map(|keyring| Some((keyring, etag))).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match updated {
            Ok(fresh) => {
                if let Some((keyring, etag)) = fresh {
                    self.core.keyring.store(Arc::new(keyring.without(&self.lost)));
                    self.source.used(etag);
                }
                gauge!(names::KEYS_FETCHED).set(now.0 as f64);
                self.publish_keys(now);
                self.tell_keys("the issuer's directory lists no key that is in use now");
                true
            }
            Err(reason) => {
                tracing::warn!(%reason, "the issuer's keys could not be refreshed; known keys stay in use");
                self.tell_keys(&reason);
                false
            }
        }
    }

    /// Ready while there is a key in use, whatever the last fetch said.
    fn tell_keys(&self, reason: &str) {
        if self.core.keyring.load().is_usable(UnixSeconds::now()) {
            self.keys_gate.set_ready();
        } else {
            self.keys_gate.set_not_ready(reason);
        }
    }

    /// Sets the gauges of the keys; how many are known.
    fn publish_keys(&self, now: UnixSeconds) -> usize {
        let keyring = self.core.keyring.load();
        let keys = keyring.view(now);
        for phase in KeyPhase::ALL {
            let number = keys.iter().filter(|key| key.phase == *phase).count();
            gauge!(names::KEYS, KeyPhase::LABEL => phase.as_str()).set(number as f64);
        }
        let newest = keys.iter().find(|key| key.phase == KeyPhase::Newest);
        let age = newest.and_then(|newest| newest.age).unwrap_or_default();
        gauge!(names::KEY_AGE).set(age.as_secs_f64());
        let last = keys.iter().map(|key| key.retires).max().unwrap_or_default();
        gauge!(names::KEYS_RETIRE).set(last.0 as f64);
        keyring.len()
    }

    async fn tick(&self) {
        let now = UnixSeconds::now();
        self.core.recorder.tell_refusals();
        if self.publish_keys(now) > 0 {
            self.tell_keys("every known key has retired");
        }
        let core = Arc::clone(&self.core);
        // The disk may take its time, and this runtime has other things to do.
        let dropped = tokio::task::spawn_blocking(move || {
            if let Backend::Embedded(store) = &core.backend {
                gauge!(names::SPENT_RECORDS).set(store.stats().records as f64);
            }
            core.backend.drop_expired(now)
        });
        if let Ok(Err(error)) = dropped.await {
            tracing::warn!(%error, "records of retired keys cannot be removed and take up room; it is tried \
                again. Check the disk and the store's directory");
        }
    }

    /// Tells whether a spend could be answered, and publishes what the store has counted.
    async fn look_after_store(&mut self) {
        let core = Arc::clone(&self.core);
        match core.backend.ready().await {
            Ok(()) => self.store_gate.set_ready(),
            Err(unknown) => self.store_gate.set_not_ready(unknown.to_string()),
        }
        if let Backend::Memcached(memory) = &core.backend {
            self.look_after_memory(memory);
        }
    }

    fn look_after_memory(&mut self, memory: &Memcached) {
        let health = memory.health();
        let lost = self.store_metrics.publish(&memory.totals(), &health);
        lost.into_iter().for_each(|(door, number)| self.core.recorder.lost(door, number));
        if health.lost.is_empty() || health.ready.is_err() {
            return;
        }
        let keys = health.lost.len();
        self.store_gate.set_degraded(format!(
            "records of {keys} token keys were lost, so spent tokens may be spent again; rotate the issuer's keys"
        ));
        if self.on_loss == LossPolicy::Rotate && health.lost.iter().any(|key| !self.lost.contains(key)) {
            self.lost = health.lost;
            let left = self.core.keyring.load().without(&self.lost);
            self.core.keyring.store(Arc::new(left));
            self.tell_keys("the store has lost records of every key; publish a new one");
        }
    }
}
