//! What goes on beside the requests: keys are fetched, retired records dropped, gauges set, readiness told.

use crate::gateway::Core;
use crate::keyring::Lifetimes;
use crate::source::{Fetched, Source};
use metrics::gauge;
use postern_service::admin::{Gate, Readiness};
use postern_service::names;
use postern_spend::{SpendStore, Store};
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The first wait after a failed fetch; it doubles up to the poll interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// How often records are looked through for expired epochs, and gauges set.
const TICK: Duration = Duration::from_secs(10);

pub(crate) struct Upkeep {
    core: Arc<Core>,
    source: Source,
    lifetimes: Lifetimes,
    poll: Duration,
    keys_gate: Gate,
    store_gate: Gate,
}

impl Upkeep {
    pub(crate) fn new(
        core: Arc<Core>,
        source: Source,
        lifetimes: Lifetimes,
        poll: Duration,
        readiness: &Readiness,
    ) -> Self {
        let (keys_gate, store_gate) = (readiness.gate("keys"), readiness.gate("store"));
        Self { core, source, lifetimes, poll, keys_gate, store_gate }
    }

    /// Goes on until it is dropped.
    pub(crate) async fn run(mut self) {
        let mut reloads = self.core.shutdown.reloads();
        let (mut next_fetch, mut next_tick, mut retry) = (Instant::now(), Instant::now(), FIRST_RETRY);
        loop {
            tokio::select! {
                () = sleep_until(next_tick) => {
                    self.tick().await;
                    next_tick = Instant::now() + TICK;
                }
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
        let now = UnixSeconds::now();
        let updated = match self.source.fetch().await {
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
                    self.core.keyring.store(Arc::new(keyring));
                    self.source.used(etag);
                }
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

    async fn tick(&self) {
        let now = UnixSeconds::now();
        if let Some(age) = self.core.keyring.load().age(now) {
            gauge!(names::KEY_AGE).set(age.as_secs_f64());
            self.tell_keys("every known key has retired");
        }
        match self.core.store.ready().await {
            Ok(()) => self.store_gate.set_ready(),
            Err(unknown) => self.store_gate.set_not_ready(unknown.to_string()),
        }
        let core = Arc::clone(&self.core);
        // The disk may take its time, and this runtime has other things to do.
        let dropped = tokio::task::spawn_blocking(move || {
            let Store::Embedded(store) = &core.store;
            gauge!(names::SPENT_RECORDS).set(store.stats().records as f64);
            core.store.drop_expired(now)
        });
        if let Ok(Err(error)) = dropped.await {
            tracing::warn!(%error, "spent records of retired keys could not be dropped");
        }
    }
}
