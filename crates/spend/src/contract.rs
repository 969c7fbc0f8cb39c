//! The spend contract as a trait, and the three answers it can give.

use crate::ExchangeLog;
use postern_token::{MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::future::Future;
use std::io;
use std::sync::Arc;

/// A store of spent tokens.
///
/// # The contract
///
/// **Of all presentations of one key, at most one is ever answered [`Spend::Admitted`]**: over all callers, threads,
/// gateways and restarts, until the epoch expires, whatever fails, while the store loses no more than it is deployed
/// to survive.
///
/// * A *false `Admitted`* lets one token be spent twice. That is the one thing the system exists to prevent, it cannot
///   be undone and goes unnoticed. So `Admitted` is given only when this very call put the record in, and every doubt
///   (timeout, error, a reply that is not understood) is an [`Unknown`].
/// * A *false `AlreadySpent`* costs an honest client one token, which its agent replaces by itself. A store may
///   therefore err in this direction, rarely: after a write that failed half-way, or by a collision nobody can aim.
/// * An *`Unknown`* costs the client a 503 and perhaps the token: the record may or may not be there. It is no
///   statement about the token and never opens a tunnel; there is deliberately no way to turn it into a [`Spend`].
///
/// # What callers owe
///
/// * `key` is derived under `epoch.key` (see [`SpentKey::derive`]), so one key never occurs in two epochs.
/// * `now` is the present second. From `epoch.expires` on the store refuses with [`Unknown::EpochRetired`] and may
///   forget the records: so the token key must have been retired before, by a margin larger than the clocks of all
///   gateways and stores can differ.
/// * `epoch.expires` of one key may move later while the epoch lives, and then keeps its records longer. Moving it
///   earlier refuses presentations earlier but gives up no record.
///
/// # Cancellation
///
/// Any returned future may be dropped at any point. The key is then spent or not spent, and later presentations get
/// right answers: together with the dropped one at most one `Admitted`. Nothing stays locked, and no later call
/// receives an answer that was meant for the dropped one.
///
/// Futures are `Send` and unboxed; the trait is not object-safe, [`Store`](crate::Store) is the way to choose at run
/// time.
pub trait SpendStore: Send + Sync + 'static {
    /// Whether a record of `key` is there: **a hint**, to refuse a replay before any cryptography is done. `log` records
    /// what the call waited for.
    ///
    /// [`Hint::Spent`] is reliable, for spent never becomes unspent before the epoch expires. [`Hint::NotFound`] proves
    /// nothing (a dead server may answer like a miss) and is never a reason to admit.
    ///
    /// # Errors
    /// Why there is no answer. A caller may go on to spend, which decides.
    fn check_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Hint, Unknown>> + Send;

    /// Spends `key`: atomically records it unless it is recorded already. Returns which of the two: the verdict. `log`
    /// records what the call waited for.
    ///
    /// # Errors
    /// [`Unknown`] is why there is no verdict; the presentation must be refused. It must not be repeated blindly: the
    /// record may have been written, and a repetition would then find its own trace and call it a replay.
    fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Spend, Unknown>> + Send;

    /// [`SpendStore::check_with`], without a log.
    ///
    /// # Errors
    /// As there.
    fn check(&self, key: &SpentKey, epoch: &Epoch) -> impl Future<Output = Result<Hint, Unknown>> + Send {
        async { self.check_with(key, epoch, &mut ExchangeLog::default()).await }
    }

    /// [`SpendStore::spend_with`], without a log.
    ///
    /// # Errors
    /// As there.
    fn spend(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
    ) -> impl Future<Output = Result<Spend, Unknown>> + Send {
        async move { self.spend_with(key, epoch, now, &mut ExchangeLog::default()).await }
    }

    /// Whether a spend could be answered now, for readiness (`/readyz`).
    ///
    /// # Errors
    /// Why not.
    fn ready(&self) -> impl Future<Output = Result<(), Unknown>> + Send;
}

/// The life of one token key with its records: the key that issued the tokens, and how long their records are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The id of the token key under which the tokens were issued (public).
    pub key: TokenKeyId,
    /// The absolute second from which the records may be dropped: the key's retirement plus a margin, chosen by the
    /// caller. No presentation is admitted from then on.
    pub expires: UnixSeconds,
    /// The mark that binds the token to the memory which knows it. A token has one mark for ever, so `key` does not occur under
    /// two. `None` where no token is meant: such an epoch can be offered, and nothing is spent from it.
    pub mark: Option<MarkId>,
}

/// What [`SpendStore::check_with`] found. A hint only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Hint {
    /// The key is recorded: the presentation is a replay.
    Spent,
    /// No record was found, which proves nothing.
    NotFound,
}

/// The verdict of [`SpendStore::spend_with`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Spend {
    /// This call, and no other ever, spent the key. The only admission there is.
    Admitted,
    /// The key was recorded before: a replay.
    AlreadySpent,
    /// The memory that took the record does not know the token's mark, so it may have lost an earlier record of the
    /// token, or never had it. The token is recorded, and no store will admit it any more.
    Void,
}

/// Why the store gives no verdict. The presentation is refused.
///
/// All but [`Unknown::EpochRetired`] are the store's trouble and pass with it: the answer to the client is 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unknown {
    /// The store could not be reached, or reading or writing failed.
    #[error("the double-spend store failed or could not be reached: {0}")]
    Unavailable(io::ErrorKind),
    /// No answer came in the time allowed. The record may have been written.
    #[error("the double-spend store did not answer in time")]
    TimedOut,
    /// There is no room for the record: the disk, a quota or a file size limit is full.
    #[error("the double-spend store has no room left: free disk space or raise the quota")]
    DiskFull,
    /// A sync to disk failed earlier, so what was written cannot be trusted. Lasts until the store is opened again.
    #[error(
        "the double-spend store could not sync to disk and refuses until it is opened again: check the disk"
    )]
    SyncFailed,
    /// There is more to do than the bounds allow: a full queue, or no free connection in time.
    #[error("the double-spend store has more to do than its bounds allow")]
    Overloaded,
    /// The store answered that it could not do it: a server behind the router is down, or its memory is full.
    #[error("the double-spend store answered with an error")]
    Rejected,
    /// The bytes received are not a reply to the command.
    #[error(
        "the double-spend store gave an answer that is not understood: it has to be memcached without a password (-Y), or a router"
    )]
    Garbled,
    /// Addresses of the store lead where they should not: those of one replica to different records, or those of two to the
    /// same.
    #[error(
        "the double-spend store's addresses lead to different records where they should not, or to the same"
    )]
    Unproven,
    /// No mark is on offer yet: the first witnesses are being written, or the store has not been read.
    #[error("the double-spend store offers no mark yet that tokens could be bound to")]
    Unmarked,
    /// The watch over the store has ended by a fault of this process.
    #[error("the watch over the double-spend store has ended: restart the gateway")]
    Unwatched,
    /// The token's key has been retired: its records may be gone, so none of its tokens is admitted any more. The
    /// token's fault, not the store's: the answer to the client is a new challenge.
    #[error("the token's key has been retired")]
    EpochRetired,
}

impl Unknown {
    /// The reason as one snake_case word, for a metric's label or a log field.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unavailable(_) => "unavailable",
            Self::TimedOut => "timed_out",
            Self::DiskFull => "disk_full",
            Self::SyncFailed => "sync_failed",
            Self::Overloaded => "overloaded",
            Self::Rejected => "rejected",
            Self::Garbled => "garbled",
            Self::Unproven => "unproven",
            Self::Unmarked => "unmarked",
            Self::Unwatched => "unwatched",
            Self::EpochRetired => "epoch_retired",
        }
    }
}

impl From<io::Error> for Unknown {
    fn from(error: io::Error) -> Self {
        error.kind().into()
    }
}

impl From<io::ErrorKind> for Unknown {
    fn from(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DiskFull
            }
            io::ErrorKind::TimedOut => Self::TimedOut,
            kind => Self::Unavailable(kind),
        }
    }
}

/// A shared store is a store.
impl<S: SpendStore> SpendStore for Arc<S> {
    fn check_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Hint, Unknown>> + Send {
        (**self).check_with(key, epoch, log)
    }

    fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Spend, Unknown>> + Send {
        (**self).spend_with(key, epoch, now, log)
    }

    fn ready(&self) -> impl Future<Output = Result<(), Unknown>> + Send {
        (**self).ready()
    }
}
