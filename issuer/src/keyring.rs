//! The keys in use, as requests read them, and the task that rotates them.

use crate::catalogue::ISSUER_SIGNS_UNTIL;
use crate::control::{KeyRequest, Line, Refused};
use crate::directory::{Document, Imprint};
use crate::health::{Fault, Health};
use crate::hsm::Hsm;
use crate::keys::{self, KeyPhase, KeyStore, KeysError, TokenKey};
use crate::rotation::{Phase, Schedule};
use arc_swap::ArcSwap;
use metrics::gauge;
use postern_daemon::utc;
use postern_token::{SigningKey, TokenType, UnixSeconds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

/// Maximum time between two checks of the keys: the clock may be set, or the machine may sleep.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Interval of looks at the keys that other issuers change, too.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failure to make a key.
const RETRY: Duration = Duration::from_secs(10);
/// Interval at which readiness checks the HSM.
const LOOK_AT_HSM: Duration = Duration::from_secs(1);

/// Maximum number of waiting commands: as many as the socket serves operators at once.
const MOST_WAITING: usize = 8;
/// Maximum time for a command to wait and run. Making a key takes a second at worst.
const PATIENCE: Duration = Duration::from_secs(20);

/// The keys and the directory being served. Reading takes no lock.
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

/// A reason that no key signs a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// There are no keys of this type.
    Type(TokenType),
    /// No key of the type has this truncated id.
    Unknown,
    /// The key's successor has taken over.
    Retired,
    /// The key is not yet in use.
    NotYet,
    /// No key is in use for an issued type.
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

    /// Sets the types and lifetimes of future keys, and the contents of the directory in addition to the keys.
    pub(crate) fn reschedule(&self, schedule: Schedule, imprint: Imprint) {
        self.schedule.store(Arc::new(schedule));
        self.imprint.store(Arc::new(imprint));
        self.rescheduled.notify_one();
    }

    /// Returns the key of this type with this truncated id, if it signs at `now`.
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

    /// Returns the keys that have not expired, newest first.
    pub(crate) fn view(&self, now: UnixSeconds) -> Vec<(TokenKey, KeyPhase)> {
        keys::view(&self.served.load().keys, now)
    }

    /// Makes, publishes and retires keys on schedule and on operators' commands. Only this task changes the keys, one change
    /// after another. Never returns; cancel safe: a change in progress is finished by its own thread, and found by the next
    /// start.
    pub(crate) async fn run(
        &self,
        mut store: KeyStore,
        mut commands: mpsc::Receiver<Command>,
        health: &Health,
    ) {
        self.report(&store, Ok(()), health);
        let most = if store.is_shared() { LOOK_EVERY } else { MAX_WAIT };
        let mut longest = most;
        loop {
            let now = UnixSeconds::now();
            let wait = now.until(self.document().changes_at);
            // Changes are at whole seconds and `now` is cut to one, so the next may be up to a second nearer than `wait`;
            // a check in vain once a second costs nothing.
            let wait = tokio::time::sleep(wait.clamp(Duration::from_secs(1), longest));
            let command = tokio::select! {
                () = wait => None,
                () = self.rescheduled.notified() => None,
                Some(command) = commands.recv() => Some(command),
            };
            // `None`: the runtime is shutting down.
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
        health.set(Fault::Clock, store.clock_fault(now));
        let until = self.issues_until(now);
        gauge!(ISSUER_SIGNS_UNTIL).set(until.map_or(0.0, |until| until.0 as f64));
        let none =
            "no token key is in use for a type that is issued, and requests for its tokens are refused";
        health.set(Fault::NoKey, until.is_none().then_some(none));
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

    /// Rotates the keys and carries out a command, on a thread that may block. A command is answered after its change is served.
    async fn turn(
        &self,
        mut store: KeyStore,
        command: Option<Command>,
        now: UnixSeconds,
    ) -> Option<(KeyStore, Result<(), KeysError>)> {
        let schedule = **self.schedule.load();
        let turning = tokio::task::spawn_blocking(move || {
            let rotated = store.rotate(&schedule, now);
            let answered = command.and_then(|command| carry_out(command, &mut store, &schedule, now));
            (store, rotated, answered)
        });
        let (store, rotated, answered) = turning.await.ok()?;
        self.served.store(Arc::new(Served::of(&store, &schedule, &self.imprint.load(), now)));
        if let Some((answer, reply)) = answered {
            let _ = reply.send(answer); // the operator may have gone
        }
        Some((store, rotated))
    }

    /// Reports the condition of the HSM to readiness. Never returns; cancel safe.
    pub(crate) async fn watch_hsm(&self, hsm: Option<Hsm>, health: &Health) {
        let Some(hsm) = hsm else { return std::future::pending().await };
        loop {
            health.set(Fault::Hsm, hsm.condition());
            let keys = self.view(UnixSeconds::now());
            let newest = keys.iter().filter(|(_, phase)| *phase == KeyPhase::Newest);
            let ids = newest.map(|(key, _)| key.signing.id());
            let unable: Vec<_> =
                ids.filter(|id| hsm.is_able(*id) == Some(false)).map(|id| id.short()).collect();
            let reason = (!unable.is_empty()).then(|| {
                format!(
                    "requests for tokens are answered 503, because the private key of the token key {} is in the HSM and cannot be \
                     used; the key directory is served, and tokens that are out stay good",
                    unable.join(" and ")
                )
            });
            health.set(Fault::NoSigner, reason);
            tokio::time::sleep(LOOK_AT_HSM).await;
        }
    }

    /// Returns the time until which each issued type has a key that signs; `None` if one type has none.
    fn issues_until(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let served = self.served.load();
        let until = |token_type| signs_until(&served.keys, token_type, now);
        // `None` is less than any time.
        self.schedule.load().types.iter().map(until).min().flatten()
    }
}

/// Returns the time until which a key signs for a type; `None` if none does.
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

type Answer = Result<Vec<Line>, Refused>;

/// An operator's request, and the channel for its answer.
pub(crate) type Command = (KeyRequest, oneshot::Sender<Answer>);

/// Operators' commands on the keys, on their way to the task that owns the keys.
#[derive(Clone, Debug)]
pub(crate) struct Commands(mpsc::Sender<Command>);

impl Commands {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        (Self(sender), receiver)
    }

    /// Sends a request and waits for its answer, for 20 s at most.
    pub(crate) async fn carry_out(&self, request: KeyRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let done = async {
            self.0.send((request, reply)).await.ok()?;
            answer.await.ok()
        };
        let broken = |why: &str| Err(Refused::unsure(why, "postern issuer key list"));
        match timeout(PATIENCE, done).await {
            Ok(Some(answer)) => answer,
            Ok(None) => broken("the issuer stops"),
            Err(_) => broken(&format!("the issuer has not answered for {} s", PATIENCE.as_secs())),
        }
    }
}

/// Carries out a command. `None` if the operator no longer waits for it: then it is not done.
fn carry_out(
    (request, reply): Command,
    store: &mut KeyStore,
    schedule: &Schedule,
    now: UnixSeconds,
) -> Option<(Answer, oneshot::Sender<Answer>)> {
    (!reply.is_closed()).then(|| (store.carry_out(request, schedule, now), reply))
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
        let seen = |now| {
            let keys = keyring.view(UnixSeconds(now)).into_iter();
            keys.map(|(key, phase)| (key.signing.id(), phase)).collect::<Vec<_>>()
        };
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

    #[tokio::test(start_paused = true)]
    async fn a_command_that_waits_too_long_is_not_done_later() {
        let home = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(home.path(), AtRest::default()).unwrap();
        let (commands, mut taken) = Commands::new();
        let rotate = KeyRequest::Rotate { token_type: None, in_seconds: None };
        let refused = commands.carry_out(rotate.clone()).await.unwrap_err();
        assert!(refused.sentence.contains("20 s") && refused.sentence.contains("key list"), "{refused}");
        let late = taken.recv().await.unwrap();
        assert!(carry_out(late, &mut store, &Schedule::TEST, UnixSeconds(1_000_000)).is_none());
        assert!(store.keys().is_empty());
        drop(taken);
        let refused = commands.carry_out(rotate).await.unwrap_err();
        assert!(refused.sentence.contains("the issuer stops"), "{refused}");
    }
}
