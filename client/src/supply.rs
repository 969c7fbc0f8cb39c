//! The supply of tokens: the challenge they must answer, the wallet they lie in, and those who wait for one.
//!
//! [`refill`](crate::refill) fills the wallet; here is everything that a tunnel asks for.

use crate::gateway::Refused;
use crate::mint::one_line;
use crate::slot::Unspent;
use crate::wallet::{Wallet, WalletError};
use parking_lot::Mutex;
use postern_token::header::Challenge;
use postern_token::{ChallengeDigest, Token, TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// How long a request waits for a token when there is none.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Tokens for the gateway's present challenge. Everyone shares one.
pub(crate) struct Supply {
    wallet: Arc<Wallet>,
    state: Mutex<State>,
    /// Something the refill should look at: a level, a waiter, a challenge.
    wanted: Notify,
    /// Counts what waiters should look at: a token came, or an attempt failed.
    progress: watch::Sender<u64>,
}

/// The challenge that tokens are minted for.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) challenge: Challenge,
    pub(crate) digest: ChallengeDigest,
    pub(crate) issuer_name: String,
    /// A challenge with a context (RFC 9577, section 2.1.1.2) may be another one each time: nothing is minted ahead.
    pub(crate) has_context: bool,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Current>>,
    waiting: usize,
    /// Someone began to wait after the last attempt began.
    asked_anew: bool,
    failure: Option<Failure>,
    attempts: u64,
}

/// Why the last attempt to mint failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) sentence: String,
    /// The same without URLs, paths and the issuer's text.
    pub(crate) cause: String,
    /// The gateway gave no challenge: without it there is no tunnel anyway.
    pub(crate) is_gateway: bool,
    pub(crate) next_attempt: Instant,
}

/// What the refill has to look at.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) current: Option<Arc<Current>>,
    pub(crate) level: usize,
    pub(crate) waiting: usize,
    pub(crate) asked_anew: bool,
    pub(crate) failure: Option<Failure>,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Shortage {
    /// The gateway gave no challenge.
    #[error("{0}")]
    Gateway(String),
    /// The issuer gave no token.
    #[error("there is no token left, and minting failed: {sentence}")]
    Issuer { sentence: String, retry_after: Duration },
    /// Nobody answered in time.
    #[error(
        "there is no token left, and none was minted within {PATIENCE:?}; the issuer may be slow: try again"
    )]
    Slow,
    /// The wallet file failed.
    #[error("{0}; no token was sent")]
    Wallet(#[from] WalletError),
}

impl Current {
    /// `None` when the bytes are not a `TokenChallenge`.
    pub(crate) fn new(challenge: Challenge) -> Option<Self> {
        let parsed = challenge.token_challenge().ok()?;
        Some(Self {
            digest: ChallengeDigest::of(&challenge.bytes),
            issuer_name: parsed.issuer_name().to_owned(),
            has_context: parsed.redemption_context().is_some(),
            challenge,
        })
    }

    /// Whether tokens for the one come from the same key of the same issuer as tokens for the other.
    fn has_source_of(&self, other: &Self) -> bool {
        self.issuer_name == other.issuer_name && self.challenge.token_key == other.challenge.token_key
    }
}

impl Supply {
    pub(crate) fn new(wallet: Wallet) -> Self {
        Self {
            wallet: Arc::new(wallet),
            state: Mutex::default(),
            wanted: Notify::new(),
            progress: watch::Sender::new(0),
        }
    }

    /// A token, if there is one now. It is no longer on disk when this returns; dropping the future may lose one.
    pub(crate) async fn take(&self) -> Result<Option<Unspent>, WalletError> {
        let Some(digest) = self.state.lock().current.as_ref().map(|current| current.digest) else {
            return Ok(None);
        };
        let now = UnixSeconds::now();
        let taken = if self.wallet.blocks() {
            let wallet = self.wallet.clone();
            // A join error is a panic in the wallet: the token is gone, and the next try takes another.
            spawn_blocking(move || wallet.take(digest, now)).await.unwrap_or(Ok(None))
        } else {
            self.wallet.take(digest, now)
        };
        self.wanted.notify_one();
        taken
    }

    /// A token, when there is one: [`PATIENCE`] at most. Requests that wait share one refill. It ends early when the
    /// gateway gives no challenge, or minting failed and the next attempt comes too late.
    pub(crate) async fn wait(&self) -> Result<Unspent, Shortage> {
        let deadline = Instant::now() + PATIENCE;
        let mut progress = self.progress.subscribe();
        let attempts_before = self.state.lock().attempts;
        let mut is_new = true;
        loop {
            progress.mark_unchanged();
            // Nobody is counted as waiting while they take: the refill would mint one more in their place.
            if let Some(unspent) = self.take().await? {
                return Ok(unspent);
            }
            let _waiting = Waiting::begin(self, is_new);
            is_new = false;
            self.is_hopeless(attempts_before, deadline)?;
            // The sender lives in `self`, so it is only the deadline that can end this with an error.
            if timeout_at(deadline, progress.changed()).await.is_err() {
                return Err(self.state.lock().failure.as_ref().map_or(Shortage::Slow, Failure::shortage));
            }
        }
    }

    fn is_hopeless(&self, attempts_before: u64, deadline: Instant) -> Result<(), Shortage> {
        let state = self.state.lock();
        match &state.failure {
            // The refill asks the gateway again at once for someone new, so an old failure proves nothing.
            Some(failure) if failure.is_gateway && state.attempts > attempts_before => {
                Err(failure.shortage())
            }
            Some(failure) if !failure.is_gateway && failure.next_attempt >= deadline => {
                Err(failure.shortage())
            }
            _ => Ok(()),
        }
    }

    /// Puts back a token that was taken and **never sent**.
    pub(crate) fn give_back(&self, unspent: Unspent) {
        if let Err(error) = self.wallet.add(unspent) {
            tracing::warn!("a token that was not sent cannot go back into the wallet and is lost: {error}");
        }
    }

    /// Learns from a 407 to `token`: the challenge that is asked for now, and whether the token's key is of use.
    pub(crate) fn refused(&self, token: &Token, answer: &Refused) {
        let current = match answer.challenge().map(Current::new) {
            Ok(Some(current)) => current,
            Ok(None) => return,
            Err(reason) => {
                tracing::warn!(
                    "the gateway refused a token and gave no challenge: {}",
                    one_line(reason.as_bytes())
                );
                return;
            }
        };
        // A gateway that names another key, and does not say that this one token is spent, has retired the key: the
        // tokens left of it would each cost somebody a refusal.
        let key = token.token_key_id();
        let names_another =
            current.challenge.token_key.as_ref().is_some_and(|spki| TokenKeyId::of(spki) != key);
        if names_another && token.challenge_digest() == current.digest && !answer.says_spent() {
            self.in_wallet(move |wallet| wallet.drop_key(current.digest, key));
        }
        self.adopt(current);
    }

    /// Makes this the challenge that tokens are minted for. Tokens for others stay in the wallet, for when they are
    /// asked for again. Returns whether anything changed.
    pub(crate) fn adopt(&self, current: Current) -> bool {
        let mut state = self.state.lock();
        if state.current.as_ref().is_some_and(|present| present.challenge == current.challenge) {
            return false;
        }
        if state.current.as_ref().is_none_or(|present| !present.has_source_of(&current)) {
            state.failure = None; // it was another issuer's, or another key's
        }
        state.current = Some(Arc::new(current));
        drop(state);
        self.wanted.notify_one();
        self.progress.send_modify(|count| *count += 1);
        true
    }

    pub(crate) fn current(&self) -> Option<Arc<Current>> {
        self.state.lock().current.clone()
    }

    /// Completes when [`Supply::demand`] may have changed. Cancel safe; one listener.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    pub(crate) fn demand(&self) -> Demand {
        let state = self.state.lock();
        let level =
            state.current.as_ref().map_or(0, |current| self.wallet.level(current.digest, UnixSeconds::now()));
        Demand {
            current: state.current.clone(),
            level,
            waiting: state.waiting,
            asked_anew: state.asked_anew,
            failure: state.failure.clone(),
        }
    }

    /// An attempt to mint begins.
    pub(crate) fn begin_attempt(&self) {
        self.state.lock().asked_anew = false;
    }

    /// An attempt has ended; those who wait hear of it.
    pub(crate) fn end_attempt(&self, failure: Option<Failure>) {
        let mut state = self.state.lock();
        state.attempts += 1;
        state.failure = failure;
        drop(state);
        self.progress.send_modify(|count| *count += 1);
    }

    /// Keeps a token that was minted, and wakes those who wait.
    pub(crate) fn add(&self, unspent: Unspent) -> Result<(), WalletError> {
        let added = self.wallet.add(unspent);
        self.progress.send_modify(|count| *count += 1);
        added
    }

    /// Drops what has spoiled: tokens of retired keys, and of other challenges more than `most`.
    pub(crate) fn tidy(&self, most: usize) {
        let current = self.current();
        self.in_wallet(move |wallet| {
            let retired = wallet.drop_retired(UnixSeconds::now())?;
            Ok(retired + current.map_or(Ok(0), |current| wallet.trim_others(current.digest, most))?)
        });
    }

    /// On a blocking thread where writing waits for the disk: whoever asks need not wait for it.
    fn in_wallet(&self, work: impl FnOnce(&Wallet) -> Result<usize, WalletError> + Send + 'static) {
        let wallet = self.wallet.clone();
        let work = move || {
            if let Err(error) = work(&wallet) {
                tracing::warn!(
                    "tokens that are of no use any more cannot be removed from the wallet, and are not sent: {error}"
                );
            }
        };
        if self.wallet.blocks() {
            spawn_blocking(work);
        } else {
            work();
        }
    }
}

impl Failure {
    fn shortage(&self) -> Shortage {
        let sentence = self.sentence.clone();
        if self.is_gateway {
            return Shortage::Gateway(sentence);
        }
        let retry_after = self.next_attempt.saturating_duration_since(Instant::now());
        Shortage::Issuer { sentence, retry_after }
    }
}

/// Someone who waits, counted for as long as the value lives.
struct Waiting<'a>(&'a Supply);

impl<'a> Waiting<'a> {
    fn begin(supply: &'a Supply, is_new: bool) -> Self {
        let mut state = supply.state.lock();
        state.waiting += 1;
        state.asked_anew |= is_new;
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
