//! The spend contract as a trait, the three answers that it can give, and the marks that bind tokens to the memory that records
//! them.

use crate::ExchangeLog;
use postern_token::{Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::future::Future;
use std::io;
use std::sync::Arc;

/// A store of spent tokens.
///
/// # The contract
///
/// **Of all presentations of one key, at most one is ever answered [`Spend::Admitted`]**: over all callers, threads, gateways
/// and restarts, until the epoch expires, whatever fails, while the store loses no more than its deployment is built to survive.
///
/// * A *false `Admitted`* lets one token be spent twice, permanently and unnoticed: the one failure that the system must
///   prevent. So a store returns `Admitted` only if this very call inserted the record; every doubt (timeout, error, unexpected
///   reply) is an [`Unknown`].
/// * A *false `AlreadySpent`* costs an honest client one token, which its agent replaces automatically. A store may therefore
///   err in this direction, rarely: after a write that failed half-way, or by a collision that no attacker can aim.
/// * An *`Unknown`* costs the client a 503 and perhaps the token: the record may or may not exist. An `Unknown` is no statement
///   about the token and never opens a tunnel; deliberately, nothing converts it into a [`Spend`].
///
/// # What callers owe
///
/// * `key` is derived under `epoch.key` (see [`SpentKey::derive`]), so one key never occurs in two epochs.
/// * `now` is the current second. From `epoch.expires` on the store refuses with [`Unknown::EpochRetired`] and may delete the
///   records. The token key must therefore have been retired before, by a margin larger than any clock difference between
///   gateways and stores.
/// * `epoch.expires` of one key may move later while the epoch lives; the store then keeps its records longer. Moving it earlier
///   refuses presentations earlier but deletes no record.
///
/// # Cancellation
///
/// Any returned future may be dropped at any point. The key is then spent or not spent, and later presentations get correct
/// answers: together with the dropped one, at most one `Admitted`. No lock stays held, and no later call receives an answer that
/// was meant for the dropped one.
///
/// Futures are `Send` and unboxed. The trait is not object-safe; use [`Store`](crate::Store) to select a store at run time.
pub trait SpendStore: Send + Sync + 'static {
    /// Looks up the record of `key`: **a hint**, to refuse a replay before any cryptography. `log` records where the call spent
    /// its time.
    ///
    /// [`Hint::Spent`] is reliable, because spent never becomes unspent before the epoch expires. [`Hint::NotFound`] proves
    /// nothing (a dead server may answer like a miss) and is never a reason to admit.
    ///
    /// # Errors
    /// The reason why there is no answer. A caller may continue with a spend, which decides.
    fn check_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Hint, Unknown>> + Send;

    /// Spends `key`: atomically records it unless it is recorded already, and returns the verdict. `log` records where the call
    /// spent its time.
    ///
    /// # Errors
    /// [`Unknown`] is the reason why there is no verdict; the caller must refuse the presentation. Do not retry blindly: the
    /// record may have been written, and the retry would then find its own record and report a replay.
    fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> impl Future<Output = Result<Spend, Unknown>> + Send;

    /// Calls [`SpendStore::check_with`] without a log.
    fn check(&self, key: &SpentKey, epoch: &Epoch) -> impl Future<Output = Result<Hint, Unknown>> + Send {
        async { self.check_with(key, epoch, &mut ExchangeLog::default()).await }
    }

    /// Calls [`SpendStore::spend_with`] without a log.
    fn spend(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
    ) -> impl Future<Output = Result<Spend, Unknown>> + Send {
        async move { self.spend_with(key, epoch, now, &mut ExchangeLog::default()).await }
    }

    /// Returns `Ok` if this process expects a verdict. Costs a few atomic loads, so callers may use it for each request. A
    /// caller that refuses here need not read the token, so the client keeps the token.
    fn serving(&self) -> Result<(), Unknown>;
}

/// One token key and the lifetime of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// The id of the token key that issued the tokens (public).
    pub key: TokenKeyId,
    /// The absolute second from which the records may be deleted: the key's retirement plus a margin, chosen by the caller. No
    /// presentation is admitted from then on.
    pub expires: UnixSeconds,
    /// The mark that binds the token to the memory that knows the mark. A token has one mark for its whole life, so one `key`
    /// never occurs under two marks. `None` if no token is meant: such an epoch can be offered, but nothing is spent from it.
    pub mark: Option<MarkId>,
}

/// The function that derives mark ids.
#[derive(Clone)]
pub struct Marks {
    /// Returns the id of a mark in tokens of a key: a digest of the challenge that carries the mark.
    pub id: Arc<dyn Fn(TokenKeyId, Mark) -> MarkId + Send + Sync>,
}

/// The result of [`SpendStore::check_with`]. A hint only.
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
    /// This call, and no other ever, spent the key. The only admission.
    Admitted,
    /// The key was recorded before: a replay.
    AlreadySpent,
    /// The memory that records the token does not know its mark, so an earlier record may be lost or may never have existed
    /// there. The token is not admitted. A shared store has recorded it by now, the embedded store has not.
    Void,
}

/// The reason why the store gives no verdict. The presentation is refused.
///
/// All but [`Unknown::EpochRetired`] are failures of the store and end with them: the client receives a 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unknown {
    /// The store could not be reached, or reading or writing failed.
    #[error("the double-spend store failed or could not be reached: {0}")]
    Unavailable(io::ErrorKind),
    /// No answer came before the timeout. The record may have been written.
    #[error("the double-spend store did not answer in time")]
    TimedOut,
    /// There is no room for the record: the disk, a quota or a file size limit is full.
    #[error("the double-spend store has no room left: free disk space or raise the quota")]
    DiskFull,
    /// A sync to disk failed earlier, so written records cannot be trusted. Lasts until the store is reopened.
    #[error(
        "the double-spend store could not sync to disk and refuses until it is opened again: check the disk"
    )]
    SyncFailed,
    /// A bound was reached: the queue is full, or no connection became free in time.
    #[error("the double-spend store has more to do than its bounds allow")]
    Overloaded,
    /// The store answered with an error: a server behind the router is down, or its memory is full.
    #[error("the double-spend store answered with an error")]
    Rejected,
    /// The bytes received are not a reply to the command.
    #[error(
        "the double-spend store gave an answer that is not understood: it has to be memcached without a password (-Y), or a router"
    )]
    Garbled,
    /// Addresses of the store lead to the wrong records: those of one replica to different records, or those of two replicas to
    /// the same.
    #[error(
        "the double-spend store's addresses lead to different records where they should not, or to the same"
    )]
    Astray,
    /// No mark is on offer yet: its first witnesses are being written, or the store's marks have not been read since an outage.
    #[error(
        "the double-spend store offers no mark yet: it is being written, or is being read again after an outage"
    )]
    Unmarked,
    /// The thread that watches the store has panicked.
    #[error("the watch over the double-spend store has ended: restart the gateway")]
    Unwatched,
    /// The token's key has been retired: its records may be deleted, so none of its tokens is admitted any more. The fault lies
    /// with the token, not with the store: the client receives a new challenge.
    #[error("the token's key has been retired")]
    EpochRetired,
}

impl Unknown {
    /// All values of [`Unknown::reason`].
    pub const REASONS: [&str; 11] = [
        "unavailable",
        "timed_out",
        "disk_full",
        "sync_failed",
        "overloaded",
        "rejected",
        "garbled",
        "astray",
        "unmarked",
        "unwatched",
        "epoch_retired",
    ];

    /// Returns the reason as one snake_case word, for a metric label or a log field.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        Self::REASONS[self.index()]
    }

    /// Returns the position of the reason in [`Unknown::REASONS`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Unavailable(_) => 0,
            Self::TimedOut => 1,
            Self::DiskFull => 2,
            Self::SyncFailed => 3,
            Self::Overloaded => 4,
            Self::Rejected => 5,
            Self::Garbled => 6,
            Self::Astray => 7,
            Self::Unmarked => 8,
            Self::Unwatched => 9,
            Self::EpochRetired => 10,
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
            io::ErrorKind::InvalidData => Self::Garbled, // of TLS
            kind => Self::Unavailable(kind),
        }
    }
}
