//! The keys in use, as requests see them, and the task that rotates them.

mod command;

use crate::accounts::LOOK_EVERY;
use crate::catalogue::ISSUER_SIGNS_UNTIL;
use crate::directory::{Document, Imprint};
use crate::health::{Fault, Health};
use crate::keys::{self, KeyStore, KeysError, TokenKey};
use crate::rotation::{Lifetime, Phase, Schedule};
use arc_swap::ArcSwap;
pub(crate) use command::{Command, Commands};
use metrics::gauge;
use postern_daemon::utc;
use postern_token::{SigningKey, TokenKeyId, TokenType, UnixSeconds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// The longest time between two looks at the keys: the clock may be set, or the machine may have slept.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The pause after a failure to make a key.
const RETRY: Duration = Duration::from_secs(10);

/// The keys and the directory being served. Reading them takes no lock.
#[derive(Debug)]
pub(crate) struct Keyring {
    schedule: ArcSwap<Schedule>,
    rescheduled: Notify,
    imprint: ArcSwap<Imprint>,
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
    pub(crate) token_type: TokenType,
    /// How the name of its file ends.
    pub(crate) ending: &'static str,
    pub(crate) phase: KeyPhase,
    pub(crate) life: Lifetime,
}

/// Why no key signs a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// There are none of this type.
    Type(TokenType),
    /// No key of ours has this truncated id.
    Unknown,
    /// Its successor has taken over.
    Retired,
    /// Its time has not come.
    NotYet,
    /// No key of a type that is issued is in use.
    Absent,
}

impl Keyring {
    pub(crate) fn new(store: &KeyStore, schedule: Schedule, imprint: Imprint, now: UnixSeconds) -> Self {
        let served = Served::of(store, &schedule, &imprint, now);
        Self {
            schedule: ArcSwap::from_pointee(schedule),
            rescheduled: Notify::new(),
            imprint: ArcSwap::from_pointee(imprint),
            served: ArcSwap::from_pointee(served),
        }
    }

    /// Sets the types and lifetimes of keys made from now on, and what the directory says beside the keys.
    pub(crate) fn reschedule(&self, schedule: Schedule, imprint: Imprint) {
        self.schedule.store(Arc::new(schedule));
        self.imprint.store(Arc::new(imprint));
        self.rescheduled.notify_one();
    }

    /// An operator has asked for a reload: whether copies have come is looked at now.
    pub(crate) fn look_now(&self) {
        self.rescheduled.notify_one();
    }

    /// The key of this type with this truncated id, if it signs at `now`.
    pub(crate) fn signer(
        &self,
        token_type: TokenType,
        truncated: u8,
        now: UnixSeconds,
    ) -> Result<Arc<SigningKey>, NoKey> {
        let served = self.served.load();
        let is_issued = self.schedule.load().types.iter().any(|issued| issued == token_type);
        if is_issued && signs_until(&served.keys, token_type, now).is_none() {
            return Err(NoKey::Absent); // through no fault of the request
        }
        let mut of_type = served.keys.iter().filter(|key| key.signing.token_type() == token_type).peekable();
        of_type.peek().ok_or(NoKey::Type(token_type))?;
        let key = of_type.find(|key| key.signing.id().truncated() == truncated).ok_or(NoKey::Unknown)?;
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
        keys::view(&served.keys, now)
    }

    /// Makes, publishes and retires keys as their times come and as operators command: it alone changes the keys, one change
    /// after another. Never ends; cancel safe: what is being done then is finished by its own thread, and found by the next start.
    pub(crate) async fn run(
        &self,
        mut store: KeyStore,
        mut commands: mpsc::Receiver<Command>,
        health: &Health,
    ) {
        self.report(&store, Ok(()), health);
        let most = if store.follows().is_some() { LOOK_EVERY } else { MAX_WAIT };
        let mut longest = most;
        loop {
            let now = UnixSeconds::now();
            let wait = now.until(self.document().changes_at);
            // Changes are at whole seconds and `now` is cut to one: it may be up to a second nearer than it seems,
            // and looking in vain once a second costs nothing.
            let wait = tokio::time::sleep(wait.clamp(Duration::from_secs(1), longest));
            let command = tokio::select! {
                () = wait => None,
                () = self.rescheduled.notified() => None,
                Some(command) = commands.recv() => Some(command),
            };
            // The runtime is shutting down when it does not come back.
            let Some((back, rotated)) = self.turn(store, command, UnixSeconds::now()).await else {
                return std::future::pending().await;
            };
            longest = if rotated.is_err() { RETRY.min(most) } else { most };
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
        match store.copy_fault() {
            Some(reason) => health.raise(Fault::KeyCopies, reason),
            None => health.clear(Fault::KeyCopies),
        }
        let until = self.issues_until(now);
        gauge!(ISSUER_SIGNS_UNTIL).set(until.map_or(0.0, |until| until.0 as f64));
        if until.is_some() {
            health.clear(Fault::NoKey);
        } else {
            health.raise(
                Fault::NoKey,
                "no token key is in use for a type that is issued, and requests for its tokens are refused",
            );
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
            match error {
                KeysError::NotCopied { .. } => format!("{error}{tail}"),
                error => {
                    format!("the next token key cannot be made: {error}. It is tried every {every} s{tail}")
                }
            },
        );
    }

    /// One turn, on a thread that may block. What a command has changed is served before it is answered.
    async fn turn(
        &self,
        mut store: KeyStore,
        command: Option<Command>,
        now: UnixSeconds,
    ) -> Option<(KeyStore, Result<(), KeysError>)> {
        let schedule = **self.schedule.load();
        let turning = tokio::task::spawn_blocking(move || {
            let rotated = store.rotate(&schedule, now);
            let answer = command.and_then(|command| command.carry_out(&mut store, &schedule, now));
            (store, rotated, answer)
        });
        let (store, rotated, answer) = turning.await.ok()?;
        self.served.store(Arc::new(Served::of(&store, &schedule, &self.imprint.load(), now)));
        if let Some(answer) = answer {
            answer.send();
        }
        Some((store, rotated))
    }

    /// Until when there is a key that signs for each type that is issued; nothing where there is none for one of them.
    fn issues_until(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let served = self.served.load();
        let until = |token_type| signs_until(&served.keys, token_type, now);
        // `None` is less than any time.
        self.schedule.load().types.iter().map(until).min().flatten()
    }
}

/// Until when a key signs for a type; nothing where there is none.
fn signs_until(keys: &[TokenKey], token_type: TokenType, now: UnixSeconds) -> Option<UnixSeconds> {
    let of_type = keys.iter().filter(|key| key.signing.token_type() == token_type).map(|key| key.life);
    of_type.filter(|life| life.phase(now) == Phase::Issuing).map(|life| life.issue_until).max()
}

impl Served {
    fn of(store: &KeyStore, schedule: &Schedule, imprint: &Imprint, now: UnixSeconds) -> Self {
        let keys = store.keys().to_vec();
        let document = Arc::new(Document::of(&keys, store.revoked(now), schedule, imprint, now));
        Self { keys, document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::at_rest::AtRest;
    use postern_token::Directory;

    fn imprint() -> Imprint {
        Imprint { request_uri: "/token-request".to_owned(), batch_limit: 100 }
    }

    fn listed(keyring: &Keyring) -> usize {
        Directory::parse(&keyring.document().representation.body).unwrap().token_keys.len()
    }

    #[tokio::test]
    async fn a_turn_publishes_the_successor_and_lets_the_old_key_go() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(directory.path(), AtRest::default()).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&Schedule::TEST, start).unwrap();
        let keyring = Keyring::new(&store, Schedule::TEST, imprint(), start);
        let first = store.keys()[0].signing.id().truncated();
        assert!(keyring.signer(TokenType::BlindRsa2048, first, start).is_ok());
        assert_eq!(
            keyring.signer(TokenType::BlindRsa2048, first.wrapping_add(1), start).unwrap_err(),
            NoKey::Unknown
        );

        let (store, rotated) = keyring.turn(store, None, UnixSeconds(1_029_000)).await.unwrap();
        rotated.unwrap();
        let second = store.keys()[1].signing.id().truncated();
        assert_eq!(listed(&keyring), 2);
        assert_eq!(
            keyring.signer(TokenType::BlindRsa2048, second, UnixSeconds(1_029_000)).unwrap_err(),
            NoKey::NotYet
        );
        assert!(keyring.signer(TokenType::BlindRsa2048, second, UnixSeconds(1_030_000)).is_ok());
        assert!(
            keyring.signer(TokenType::BlindRsa2048, first, UnixSeconds(1_030_000)).is_ok(),
            "a copy of the directory may be seconds old"
        );
        assert_eq!(
            keyring.signer(TokenType::BlindRsa2048, first, UnixSeconds(1_031_000)).unwrap_err(),
            NoKey::Retired
        );

        let (_, rotated) = keyring.turn(store, None, UnixSeconds(1_037_000)).await.unwrap();
        rotated.unwrap();
        assert_eq!(listed(&keyring), 1);
        assert_eq!(
            keyring.signer(TokenType::BlindRsa2048, first, UnixSeconds(1_037_000)).unwrap_err(),
            NoKey::Unknown
        );
    }

    #[tokio::test]
    async fn the_operator_sees_which_key_is_in_use_and_which_come_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(directory.path(), AtRest::default()).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&Schedule::TEST, start).unwrap();
        let keyring = Keyring::new(&store, Schedule::TEST, imprint(), start);
        let first = store.keys()[0].signing.id();
        let seen =
            |now| keyring.view(UnixSeconds(now)).iter().map(|key| (key.id, key.phase)).collect::<Vec<_>>();
        assert_eq!(seen(1_000_000), [(first, KeyPhase::Newest)]);

        let (store, rotated) = keyring.turn(store, None, UnixSeconds(1_029_000)).await.unwrap();
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
        let mut store = KeyStore::open(&keys, AtRest::default()).unwrap();
        let start = UnixSeconds(1_000_000);
        store.rotate(&Schedule::TEST, start).unwrap();
        let keyring = Keyring::new(&store, Schedule::TEST, imprint(), start);
        std::fs::remove_dir_all(&keys).unwrap();

        let (store, rotated) = keyring.turn(store, None, UnixSeconds(1_029_000)).await.unwrap();
        assert!(matches!(rotated, Err(KeysError::Unwritable { .. })));
        assert_eq!(listed(&keyring), 1);
        assert!(
            keyring
                .signer(
                    TokenType::BlindRsa2048,
                    store.keys()[0].signing.id().truncated(),
                    UnixSeconds(1_029_000)
                )
                .is_ok()
        );
    }
}
