//! What a reload of the configuration changes while the issuer serves: accounts, limits, how long the directory may be
//! kept, and the times of the next keys. Everything else needs a restart.

use crate::accounts::Accounts;
use crate::config::{Config, Limits};
use crate::keyring::Keyring;
use arc_swap::{ArcSwap, Guard};
use postern_daemon::drain::Shutdown;
use postern_daemon::reload::Reloader;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The keys that take effect at once.
const LIVE: [&str; 6] =
    ["accounts", "limits", "directory.max_age", "keys.rotate_every", "keys.publish_ahead", "keys.redeem_for"];

/// The values that may change between two requests. Reading them takes no lock.
#[derive(Clone, Debug)]
pub(crate) struct Settings(Arc<ArcSwap<Present>>);

#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) limits: Limits,
    pub(crate) directory_max_age: Duration,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(Present::of(config))))
    }

    pub(crate) fn load(&self) -> Guard<Arc<Present>> {
        self.0.load()
    }
}

impl Present {
    fn of(config: &Config) -> Self {
        Self { limits: config.limits.clone(), directory_max_age: config.directory.max_age() }
    }
}

/// Places for connections, of which there may be more or fewer after a reload.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Semaphore>);

impl Slots {
    pub(crate) fn new(number: NonZeroUsize) -> Self {
        Self(Arc::new(Semaphore::new(number.get())))
    }

    /// The next free place. Cancel safe.
    pub(crate) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }

    /// Open connections are left alone: where there are more than the new limit, the next is accepted once enough of
    /// them have ended.
    fn resize(&self, old: NonZeroUsize, new: NonZeroUsize) {
        if new > old {
            return self.0.add_permits(new.get() - old.get());
        }
        let excess = old.get() - new.get();
        let taken = excess - self.0.forget_permits(excess);
        let (Ok(taken @ 1..), slots) = (u32::try_from(taken), self.0.clone()) else { return };
        tokio::spawn(async move {
            if let Ok(permits) = slots.acquire_many(taken).await {
                permits.forget();
            }
        });
    }
}

/// What a reload reaches.
pub(crate) struct Reloading {
    pub(crate) settings: Settings,
    pub(crate) slots: Slots,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
}

impl Reloading {
    /// Reloads on each request, until the stop.
    pub(crate) async fn run(self, mut reloader: Reloader<Config>, shutdown: Shutdown) {
        let reloading = async {
            loop {
                reloader.requested().await;
                // It reads files and guesses keys, which takes a thread some hundred milliseconds.
                let reading = tokio::task::spawn_blocking(move || {
                    let config = reloader.reload(&LIVE, crate::check_without_keys);
                    (reloader, config)
                });
                let Ok((back, config)) = reading.await else { return }; // the runtime is shutting down
                reloader = back;
                if let Some(config) = config {
                    self.apply(&config);
                }
            }
        };
        shutdown.until_stopped(reloading).await;
    }

    fn apply(&self, config: &Config) {
        self.accounts.replace(&config.accounts);
        self.keyring.reschedule(config.keys.schedule());
        let old = self.settings.load().limits.connections;
        self.slots.resize(old, config.limits.connections);
        self.settings.0.store(Arc::new(Present::of(config)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: usize) -> NonZeroUsize {
        NonZeroUsize::new(value).unwrap()
    }

    async fn free(slots: &Slots) -> usize {
        let mut held = Vec::new();
        let next = || tokio::time::timeout(Duration::from_millis(20), slots.take());
        while let Ok(Some(slot)) = next().await {
            held.push(slot);
        }
        held.len()
    }

    #[tokio::test]
    async fn the_number_of_places_follows_the_configuration_and_open_connections_stay() {
        let slots = Slots::new(number(2));
        let (first, second) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        slots.resize(number(2), number(4));
        assert_eq!(free(&slots).await, 2);
        slots.resize(number(4), number(1)); // two are open, so one has to end first, and a second for a place
        tokio::task::yield_now().await;
        assert_eq!(free(&slots).await, 0);
        drop(first);
        assert_eq!(free(&slots).await, 0);
        drop(second);
        assert_eq!(free(&slots).await, 1);
    }
}
