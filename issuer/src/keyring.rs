//! The keys in use, as requests see them, and the task that rotates them.

use crate::directory::Document;
use crate::health::{Fault, Health};
use crate::keys::{KeyStore, KeysError, TokenKey};
use crate::rotation::{self, Lifetime, Phase, Schedule};
use arc_swap::ArcSwap;
use postern_daemon::utc;
use postern_token::{SigningKey, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// The longest time between two looks at the keys: the clock may be set, or the machine may have slept.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The pause after a failure to make a key.
const RETRY: Duration = Duration::from_secs(10);

/// The keys and the directory being served. Reading them takes no lock.
#[derive(Debug)]
pub(crate) struct Keyring {
    schedule: ArcSwap<Schedule>,
    rescheduled: Notify,
    request_uri: ArcSwap<String>,
    served: ArcSwap<Served>,
}

#[derive(Debug)]
struct Served {
    keys: Vec<TokenKey>,
    document: Arc<Document>,
}

postern_telemetry::label! {
    /// The phase of a token key's life.
    pub(crate) KeyPhase = "phase" {
        /// Published, and not in use yet.
        Upcoming = "upcoming",
        /// The newest in use: the one that challenges name.
        Newest = "newest",
        /// Older, and its tokens are still good.
        Older = "older",
    }
}

/// A key, as it is shown to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyView {
    pub(crate) id: TokenKeyId,
    pub(crate) phase: KeyPhase,
    pub(crate) life: Lifetime,
}

/// Why no key signs a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// No key of ours has this truncated id.
    Unknown,
    /// Its successor has taken over.
    Retired,
    /// Its time has not come.
    NotYet,
}

impl Keyring {
    pub(crate) fn new(store: &KeyStore, schedule: Schedule, request_uri: String, now: UnixSeconds) -> Self {
        let served = Served::of(store, &schedule, &request_uri, now);
        Self {
            schedule: ArcSwap::from_pointee(schedule),
            rescheduled: Notify::new(),
            request_uri: ArcSwap::from_pointee(request_uri),
            served: ArcSwap::from_pointee(served),
        }
    }

    /// Sets the lifetimes of keys made from now on, and where the directory says that tokens are requested.
    pub(crate) fn reschedule(&self, schedule: Schedule, request_uri: &str) {
        self.schedule.store(Arc::new(schedule));
        self.request_uri.store(Arc::new(request_uri.to_owned()));
        self.rescheduled.notify_one();
    }

    /// The key with this truncated id, if it signs at `now`.
    pub(crate) fn signer(&self, truncated: u8, now: UnixSeconds) -> Result<Arc<SigningKey>, NoKey> {
        let served = self.served.load();
        let key = served.keys.iter().find(|key| key.signing.id().truncated() == truncated);
        let key = key.ok_or(NoKey::Unknown)?;
        match key.life.phase(now) {
            Phase::Issuing => Ok(key.signing.clone()),
            Phase::NotYet => Err(NoKey::NotYet),
            Phase::Redeeming | Phase::Over => Err(NoKey::Retired),
        }
    }

    pub(crate) fn document(&self) -> Arc<Document> {
        self.served.load().document.clone()
    }

    /// The keys that have not expired, newest first.
    pub(crate) fn view(&self, now: UnixSeconds) -> Vec<KeyView> {
        let served = self.served.load();
        let lives: Vec<Lifetime> = served.keys.iter().map(|key| key.life).collect();
        let current = rotation::current(&lives, now);
        let phase = |life: Lifetime| match life {
            _ if Some(life) == current => KeyPhase::Newest,
            _ if now < life.not_before => KeyPhase::Upcoming,
            _ => KeyPhase::Older,
        };
        let alive = served.keys.iter().filter(|key| key.life.phase(now) != Phase::Over);
        let mut view: Vec<_> = alive
            .map(|key| KeyView { id: key.signing.id(), phase: phase(key.life), life: key.life })
            .collect();
        view.sort_by_key(|key| std::cmp::Reverse(key.life.not_before));
        view
    }

    /// Makes, publishes and retires keys as their times come. Never ends; cancel safe: a key that is being made then
    /// is finished by its own thread and found by the next start.
    pub(crate) async fn run(&self, mut store: KeyStore, health: &Health) {
        self.report(&store, Ok(()), health);
        let mut longest = MAX_WAIT;
        loop {
            let now = UnixSeconds::now();
            let wait = now.until(self.document().changes_at);
            // Changes are at whole seconds and `now` is cut to one: it may be up to a second nearer than it seems,
            // and looking in vain once a second costs nothing.
            let wait = tokio::time::sleep(wait.clamp(Duration::from_secs(1), longest));
            tokio::select! {
                () = wait => {}
                () = self.rescheduled.notified() => {}
            }
            // The runtime is shutting down when it does not come back.
            let Some((back, rotated)) = self.rotate(store, UnixSeconds::now()).await else {
                return std::future::pending().await;
            };
            longest = if rotated.is_err() { RETRY } else { MAX_WAIT };
            self.report(&back, rotated, health);
            store = back;
        }
    }

    /// Reports the result of a rotation to the log and to readiness.
    fn report(&self, store: &KeyStore, rotated: Result<(), KeysError>, health: &Health) {
        let now = UnixSeconds::now();
        match store.clock_fault(now) {
            Some(reason) => health.raise(Fault::Clock, reason),
            None => health.clear(Fault::Clock),
        }
        let until = self.issues_until(now);
        if until.is_some() {
            health.clear(Fault::NoKey);
        } else {
            health.raise(Fault::NoKey, "no token key is in use, and every token request is refused");
        }
        let Err(error) = rotated else { return health.clear(Fault::NextKey) };
        let tail = match until {
            Some(until) => {
                format!("; the present key issues until {}, and nothing does after it", utc::rfc3339(until.0))
            }
            None => String::new(),
        };
        let every = RETRY.as_secs();
        health.raise(
            Fault::NextKey,
            format!("the next token key cannot be made: {error}. It is tried every {every} s{tail}"),
        );
    }

    /// One turn, on a thread that may block.
    async fn rotate(
        &self,
        mut store: KeyStore,
        now: UnixSeconds,
    ) -> Option<(KeyStore, Result<(), KeysError>)> {
        let schedule = **self.schedule.load();
        let turning = tokio::task::spawn_blocking(move || {
            let rotated = store.rotate(&schedule, now);
            (store, rotated)
        });
        let (store, rotated) = turning.await.ok()?;
        self.served.store(Arc::new(Served::of(&store, &schedule, &self.request_uri.load(), now)));
        Some((store, rotated))
    }

    /// Until when some key signs; nothing when none does.
    fn issues_until(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let served = self.served.load();
        let issuing = served.keys.iter().filter(|key| key.life.phase(now) == Phase::Issuing);
        issuing.map(|key| key.life.issue_until).max()
    }
}

impl Served {
    fn of(store: &KeyStore, schedule: &Schedule, request_uri: &str, now: UnixSeconds) -> Self {
        let keys = store.keys().to_vec();
        let document = Arc::new(Document::of(&keys, schedule, request_uri, now));
        Self { keys, document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::Directory;

    const SCHEDULE: Schedule = Schedule {
        rotate_every: Duration::from_secs(30_000),
        publish_ahead: Duration::from_secs(1_000),
        redeem_for: Duration::from_secs(7_000),
    };

    fn listed(keyring: &Keyring) -> usize {
        Directory::parse(&keyring.document().body).unwrap().token_keys.len()
    }

    #[tokio::test]
    async fn a_turn_publishes_the_successor_and_lets_the_old_key_go() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(directory.path()).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&SCHEDULE, start).unwrap();
        let keyring = Keyring::new(&store, SCHEDULE, "/token-request".to_owned(), start);
        let first = store.keys()[0].signing.id().truncated();
        assert!(keyring.signer(first, start).is_ok());
        assert_eq!(keyring.signer(first.wrapping_add(1), start).unwrap_err(), NoKey::Unknown);

        let (store, rotated) = keyring.rotate(store, UnixSeconds(1_029_000)).await.unwrap();
        rotated.unwrap();
        let second = store.keys()[1].signing.id().truncated();
        assert_eq!(listed(&keyring), 2);
        assert_eq!(keyring.signer(second, UnixSeconds(1_029_000)).unwrap_err(), NoKey::NotYet);
        assert!(keyring.signer(second, UnixSeconds(1_030_000)).is_ok());
        assert!(
            keyring.signer(first, UnixSeconds(1_030_000)).is_ok(),
            "a copy of the directory may be seconds old"
        );
        assert_eq!(keyring.signer(first, UnixSeconds(1_031_000)).unwrap_err(), NoKey::Retired);

        let (_, rotated) = keyring.rotate(store, UnixSeconds(1_037_000)).await.unwrap();
        rotated.unwrap();
        assert_eq!(listed(&keyring), 1);
        assert_eq!(keyring.signer(first, UnixSeconds(1_037_000)).unwrap_err(), NoKey::Unknown);
    }

    #[tokio::test]
    async fn the_operator_sees_which_key_is_in_use_and_which_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(directory.path()).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&SCHEDULE, start).unwrap();
        let keyring = Keyring::new(&store, SCHEDULE, "/token-request".to_owned(), start);
        let first = store.keys()[0].signing.id();
        let seen =
            |now| keyring.view(UnixSeconds(now)).iter().map(|key| (key.id, key.phase)).collect::<Vec<_>>();
        assert_eq!(seen(1_000_000), [(first, KeyPhase::Newest)]);

        let (store, rotated) = keyring.rotate(store, UnixSeconds(1_029_000)).await.unwrap();
        rotated.unwrap();
        let second = store.keys()[1].signing.id();
        assert_eq!(seen(1_029_999), [(second, KeyPhase::Upcoming), (first, KeyPhase::Newest)]);
        assert_eq!(seen(1_030_000), [(second, KeyPhase::Newest), (first, KeyPhase::Older)]);
        assert_eq!(seen(1_037_000), [(second, KeyPhase::Newest)]);
    }

    #[tokio::test]
    async fn a_key_that_cannot_be_written_is_not_published_and_the_old_one_serves_on() {
        let directory = tempfile::tempdir().unwrap();
        let keys = directory.path().join("keys");
        let mut store = KeyStore::open(&keys).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&SCHEDULE, start).unwrap();
        let keyring = Keyring::new(&store, SCHEDULE, "/token-request".to_owned(), start);
        std::fs::remove_dir_all(&keys).unwrap();

        let (store, rotated) = keyring.rotate(store, UnixSeconds(1_029_000)).await.unwrap();
        assert!(matches!(rotated, Err(KeysError::Unwritable { .. })));
        assert_eq!(listed(&keyring), 1);
        assert!(keyring.signer(store.keys()[0].signing.id().truncated(), UnixSeconds(1_029_000)).is_ok());
    }
}
