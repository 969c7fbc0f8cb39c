//! The supply of tokens: the challenge they answer, the wallet that holds them, and the requests that wait for one.
//!
//! [`refill`](crate::mint::refill) fills the wallet; this module serves the tunnels.

pub(crate) use crate::recorder::Failure;
use crate::recorder::{FailureKind, Fate, Recorder};
use crate::wallet::challenge::CurrentChallenge;
use crate::wallet::clock::Clock;
use crate::wallet::file::{Dropped, Wallet, WalletError};
use crate::wallet::format::Unspent;
use crate::wallet::guard::ReservedToken;
use parking_lot::Mutex;
use postern_token::{ChallengeDigest, Token, TokenKeyId, UnixSeconds};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout_at};

/// Longest wait of a request for a token.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Margin before a key's end, in which its tokens are not used: clocks are cut to whole seconds, and a token needs time to reach
/// its gateway.
pub(crate) const LAST_SECOND: Duration = Duration::from_secs(1);

/// Tokens for the gateway's present challenge, shared by all connections.
pub(crate) struct Supply {
    pub(crate) wallet: Arc<Wallet>,
    /// The issuer's clock, derived from its answers.
    pub(crate) clock: Clock,
    recorder: Arc<Recorder>,
    state: Arc<Mutex<SupplyState>>,
    /// Wakes the refill: the wallet, the waiters or the challenge have changed.
    wanted: Notify,
    /// Wakes the waiters: a token came or came back, the challenge changed, or an attempt ended. Counts these changes.
    progress: watch::Sender<u64>,
}

/// The challenge, the requests that wait, and the last attempt to mint.
#[derive(Default)]
struct SupplyState {
    current: Option<Arc<CurrentChallenge>>,
    /// Challenges of older marks, oldest first. Their tokens are sent before those for the present one.
    older: Vec<ChallengeDigest>,
    waiting: usize,
    /// `true` if a request began to wait after the last attempt began.
    asked_again: bool,
    failure: Option<Failure>,
    /// Attempts to mint that have begun, and that have ended.
    begun: u64,
    ended: u64,
    /// Keys whose tokens the gateway refused because of the key; doubted until it requires the key again, or its tokens are gone.
    doubted: BTreeSet<TokenKeyId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All, those of older marks first.
    Any,
    /// Only those for the present challenge.
    Current,
}

/// A snapshot of what is held and wanted, for the refill.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) current: Option<Arc<CurrentChallenge>>,
    /// Tokens for the present challenge (`level`), and of older marks (`older`).
    pub(crate) level: usize,
    pub(crate) older: usize,
    pub(crate) waiting: usize,
    pub(crate) asked_again: bool,
    /// `true` if there are keys to compare with the issuer's directory.
    pub(crate) has_doubts: bool,
    pub(crate) failure: Option<Failure>,
}

impl Demand {
    pub(crate) fn held(&self) -> usize {
        self.level + self.older
    }

    /// Returns `true` if requests need not wait for what is minted ahead.
    pub(crate) fn is_stocked(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.has_context || self.held() > 0)
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Shortage {
    #[error("{0}")]
    Gateway(String),
    #[error("there is no token left, and minting failed: {sentence}")]
    Issuer { sentence: String, retry_after: Duration },
    #[error(
        "there is no token left, and none was minted within {PATIENCE:?}; the issuer may be slow: try again"
    )]
    Slow,
    #[error("{0}; no token was sent")]
    Wallet(#[from] WalletError),
}

impl Supply {
    pub(crate) fn new(wallet: Wallet, recorder: Arc<Recorder>) -> Self {
        Self {
            wallet: Arc::new(wallet),
            clock: Clock::default(),
            recorder,
            state: Arc::default(),
            wanted: Notify::new(),
            progress: watch::Sender::new(0),
        }
    }

    /// Takes a token, if there is one now. On return, the token is no longer on the disk.
    pub(crate) async fn take(&self, wanted: Wanted) -> Result<Option<ReservedToken>, WalletError> {
        let (digests, doubted) = {
            let state = self.state.lock();
            let current = state.current.as_ref().map(|current| current.digest);
            let older = state.older.iter().copied().filter(|_| wanted == Wanted::Any);
            (older.chain(current).collect::<Vec<_>>(), state.doubted.clone())
        };
        let (wallet, recorder, now) = (self.wallet.clone(), self.recorder.clone(), self.now());
        let (progress, blocks) = (self.progress.clone(), wallet.fsync);
        // `ReservedToken` wraps the token inside the closure, so that the token returns to the wallet if the request is dropped.
        let take = move || {
            for digest in digests {
                let taken = wallet.take(digest, now, &doubted);
                if let Some(unspent) = taken.inspect_err(|_| recorder.fate(Fate::Unwritten, 1))? {
                    return Ok(Some(ReservedToken::new(unspent, wallet, recorder, progress)));
                }
            }
            Ok(None)
        };
        let taken = if blocks {
            // A join error is a panic in the wallet: the token is lost, and the next try takes another.
            spawn_blocking(take).await.unwrap_or(Ok(None))
        } else {
            take()
        };
        self.wanted.notify_one();
        taken
    }

    /// Returns the time at which a key must still be valid for its tokens to be used.
    fn now(&self) -> UnixSeconds {
        self.clock.now().saturating_add(LAST_SECOND)
    }

    /// Waits for a token, [`PATIENCE`] at most. Waiting requests share one refill. Fails early if the gateway gives no
    /// challenge, or if minting failed and the next attempt comes too late.
    pub(crate) async fn wait(&self, wanted: Wanted) -> Result<ReservedToken, Shortage> {
        let deadline = Instant::now() + PATIENCE;
        let mut progress = self.progress.subscribe();
        let begun_before = self.state.lock().begun;
        let mut is_new = true;
        loop {
            progress.mark_unchanged();
            // A request does not count as waiting while it takes a token: the refill would mint one too many.
            if let Some(taken) = self.take(wanted).await? {
                return Ok(taken);
            }
            let _waiting = Waiting::begin(self, is_new);
            is_new = false;
            self.is_hopeless(begun_before, deadline)?;
            // `self` holds the sender, so an error means the deadline.
            if timeout_at(deadline, progress.changed()).await.is_err() {
                return Err(self.state.lock().failure.as_ref().map_or(Shortage::Slow, Failure::shortage));
            }
        }
    }

    fn is_hopeless(&self, begun_before: u64, deadline: Instant) -> Result<(), Shortage> {
        let state = self.state.lock();
        let Some(failure) = &state.failure else { return Ok(()) };
        // A new waiter makes the refill try again immediately, so the failure of an attempt that had begun before is not final.
        let is_old = failure.is_retried_on_demand() && state.ended <= begun_before;
        match !is_old && (failure.kind == FailureKind::Gateway || failure.next_attempt >= deadline) {
            true => Err(failure.shortage()),
            false => Ok(()),
        }
    }

    /// Doubts the key of `token`, because the gateway requires another one. The key's other tokens stay in the wallet, unused,
    /// until the issuer's directory shows whether the gateway is ahead or behind.
    pub(crate) fn doubt(&self, token: &Token) {
        let key = token.token_key_id();
        let mut state = self.state.lock();
        let is_required = state.current.as_ref().is_some_and(|current| current.key == Some(key));
        let is_new = !is_required && state.doubted.insert(key); // another gateway may have required it since
        drop(state);
        if is_new {
            self.changed();
            self.wanted.notify_one();
        }
    }

    /// Settles the doubts of keys that are no longer valid (`redeems`), or of all keys if the gateway `is_up_to_date`: drops
    /// their tokens for `current`, unless the gateway has another challenge by now. A gateway that is behind will require its key
    /// again. Until the tokens are gone, their keys stay doubted: a request could take one more.
    pub(crate) async fn settle_doubts(
        &self,
        current: &CurrentChallenge,
        is_up_to_date: bool,
        redeems: impl Fn(TokenKeyId) -> bool,
    ) {
        let is_over = |key: &TokenKeyId| is_up_to_date || !redeems(*key);
        let over: Vec<_> = {
            let state = self.state.lock();
            let is_present = state.current.as_ref().is_some_and(|present| present.is_same_as(current));
            state.doubted.iter().copied().filter(|key| is_present && is_over(key)).collect()
        };
        if over.is_empty() {
            return;
        }
        let (challenge, mut keys, state) = (current.digest, over.clone(), self.state.clone());
        let dropping = self.in_wallet(Fate::Retired, move |wallet| {
            keys.retain(|key| state.lock().doubted.contains(key)); // the gateway may require one again by now
            wallet.drop_keys(challenge, &keys)
        });
        if let Some(dropping) = dropping {
            let _ = dropping.await; // a join error is a panic in the wallet
        }
        self.state.lock().doubted.retain(|key| !over.contains(key));
        self.changed();
    }

    /// Sets the challenge to mint for, and the `older` digests whose tokens are sent as well. Tokens for others stay in the
    /// wallet until their challenge is current again. `is_taken`: marks do not prevent minting for this challenge.
    pub(crate) fn adopt(&self, current: Arc<CurrentChallenge>, older: Vec<ChallengeDigest>, is_taken: bool) {
        let mut state = self.state.lock();
        state.older = older;
        state.failure.take_if(|failure| failure.kind == FailureKind::Mark && is_taken);
        state.doubted.retain(|key| Some(*key) != current.key);
        let present = state.current.replace(current.clone());
        if present.as_ref().is_some_and(|present| present.is_same_as(&current)) {
            return;
        }
        if is_taken && present.is_none_or(|present| !present.has_source_of(&current)) {
            state.failure = None; // it concerned another issuer or key
        }
        drop(state);
        self.wanted.notify_one();
        self.changed();
    }

    /// Clears the failure, so that the next attempt comes without a pause.
    pub(crate) fn forgive(&self) {
        self.state.lock().failure = None;
    }

    pub(crate) fn look(&self) {
        self.wanted.notify_one();
    }

    pub(crate) fn current(&self) -> Option<Arc<CurrentChallenge>> {
        self.state.lock().current.clone()
    }

    /// Completes when [`Supply::demand`] may have changed. Cancel safe; one listener.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    pub(crate) fn demand(&self) -> Demand {
        let (mut demand, older, doubted) = {
            let state = self.state.lock();
            let demand = Demand {
                level: 0,
                older: 0,
                current: state.current.clone(),
                waiting: state.waiting,
                asked_again: state.asked_again,
                has_doubts: !state.doubted.is_empty(),
                failure: state.failure.clone(),
            };
            (demand, state.older.clone(), state.doubted.clone())
        };
        // Not under the lock: the wallet may wait for the disk.
        let level = |digest| self.wallet.level(digest, self.now(), &doubted);
        demand.level = demand.current.as_ref().map_or(0, |current| level(current.digest));
        demand.older = older.into_iter().map(level).sum();
        demand
    }

    /// Returns the time until the next key of a token ends, if any.
    pub(crate) fn spoils_in(&self) -> Option<Duration> {
        let now = self.now();
        self.wallet.next_retirement(now).map(|moment| now.until(moment))
    }

    pub(crate) fn begin_attempt(&self) {
        let mut state = self.state.lock();
        (state.asked_again, state.begun) = (false, state.begun + 1);
    }

    /// Records the end of an attempt, and wakes the requests that wait.
    pub(crate) fn end_attempt(&self, failure: Option<Failure>) {
        let mut state = self.state.lock();
        state.ended += 1;
        state.failure = failure;
        drop(state);
        self.changed();
    }

    fn changed(&self) {
        self.progress.send_modify(|count| *count += 1);
    }

    /// Counts the changes that waiting requests were woken for.
    pub(crate) fn changes(&self) -> u64 {
        *self.progress.borrow()
    }

    /// Stores a minted token, and wakes the waiting requests.
    pub(crate) fn add(&self, unspent: Unspent) -> Result<(), WalletError> {
        self.recorder.minted();
        let added = self.wallet.add(unspent);
        if added.is_err() {
            self.recorder.fate(Fate::Unwritten, 1);
        }
        self.changed();
        added
    }

    /// Drops useless tokens: those of retired keys, once the clock has been compared with the issuer's, and those of other
    /// challenges beyond `most`.
    pub(crate) fn tidy(&self, most: usize) {
        if self.clock.is_compared() {
            let now = self.now();
            self.in_wallet(Fate::Retired, move |wallet| wallet.drop_retired(now));
        }
        let (current, mut sent) = {
            let state = self.state.lock();
            (state.current.clone(), state.older.clone())
        };
        if let Some(current) = current {
            sent.push(current.digest);
            self.in_wallet(Fate::Superseded, move |wallet| wallet.trim_others(&sent, most));
        }
    }

    pub(crate) fn give_up(&self, digest: ChallengeDigest) {
        self.in_wallet(Fate::Superseded, move |wallet| wallet.drop_challenge(digest));
    }

    /// Drops tokens, which meet this `fate`, on a blocking thread if writing waits for the disk: returned in that case.
    fn in_wallet(
        &self,
        fate: Fate,
        work: impl FnOnce(&Wallet) -> Dropped + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let (wallet, recorder) = (self.wallet.clone(), self.recorder.clone());
        let work = move || {
            let Dropped { count, written } = work(&wallet);
            recorder.fate(fate, count);
            if let Err(error) = written {
                tracing::warn!(
                    "tokens that are of no use any more cannot be removed from the wallet, and are not sent: {error}"
                );
            }
        };
        if self.wallet.fsync {
            Some(spawn_blocking(work))
        } else {
            work();
            None
        }
    }
}

impl Failure {
    /// Returns `true` if a new request triggers a retry at once.
    pub(crate) fn is_retried_on_demand(&self) -> bool {
        matches!(self.kind, FailureKind::Gateway | FailureKind::Mark)
    }

    fn shortage(&self) -> Shortage {
        let sentence = self.sentence.clone();
        if self.kind == FailureKind::Gateway {
            return Shortage::Gateway(sentence);
        }
        let retry_after = self.next_attempt.saturating_duration_since(Instant::now());
        Shortage::Issuer { sentence, retry_after }
    }
}

/// A waiting request, counted for as long as the value lives.
struct Waiting<'a>(&'a Supply);

impl<'a> Waiting<'a> {
    fn begin(supply: &'a Supply, is_new: bool) -> Self {
        let mut state = supply.state.lock();
        state.waiting += 1;
        state.asked_again |= is_new;
        drop(state);
        supply.wanted.notify_one();
        Self(supply)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}
