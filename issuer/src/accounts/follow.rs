//! The accounts of an issuer that follows another one: they are the first one's, taken from copies of its database as they come.
//!
//! What is taken up is in this issuer's own database, so it outlives a copy that is damaged, and a restart. Usage stays its own: no
//! copy gives back what an account has used here.

mod copy;

use super::store::set_needs_account;
use super::{Accounts, AccountsError, FILE_NAME, records};
use crate::catalogue::ISSUER_ACCOUNTS_COPIED;
use crate::health::{Fault, Health};
use copy::FOLLOWED;
use metrics::gauge;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

/// How often the copies are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells whether a file has changed: its inode, length, and the times of its content and of its inode in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature([i128; 4]);

/// What was seen of the copy.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    last: Option<Signature>,
    /// The last one that was taken up or refused.
    judged: Option<Signature>,
}

/// What a look has come to.
enum Looked {
    /// There is nothing new, or it is still being written.
    Nothing,
    TakenUp,
    Refused(AccountsError),
}

impl Signature {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Ok(Self([
            metadata.ino().into(),
            metadata.len().into(),
            time(metadata.mtime(), metadata.mtime_nsec()),
            time(metadata.ctime(), metadata.ctime_nsec()),
        ]))
    }
}

/// How old the copy of the accounts in `directory` is.
///
/// # Errors
/// Why a follower would not take it up, as far as its files show: what is in the database is not compared with anything.
pub(crate) fn examine_copy(directory: &Path) -> Result<Duration, AccountsError> {
    let path = directory.join(FILE_NAME);
    let made = copy::readable(&path)?;
    copy::secret_beside(&path)?;
    Ok(made.elapsed().unwrap_or_default())
}

impl Accounts {
    /// Prepares to follow, if this issuer does: without the first one's accounts nobody gets tokens.
    pub(super) fn begin_to_follow(&self) -> Result<(), AccountsError> {
        if self.configured.load().follows().is_none() {
            return Ok(());
        }
        let has_followed = self.store.write(|transaction| {
            set_needs_account(transaction)?;
            Ok::<_, super::Change<AccountsError>>(records::setting(transaction, FOLLOWED)?.is_some())
        })?;
        self.awaits_accounts.store(!has_followed, Ordering::Release);
        Ok(())
    }

    /// What `/readyz` has of it before the first look.
    pub(crate) fn report_awaited(&self, health: &Health) {
        if self.awaits_accounts.load(Ordering::Acquire) {
            health.raise(
                Fault::NoAccounts,
                "the accounts of the first issuer have not been taken up yet, and requests for tokens are answered 503",
            );
        }
    }

    /// Takes up copies of the first issuer's accounts as they come, if this issuer follows one. Never ends; cancel safe: a change
    /// that has begun is made by its own thread.
    pub(crate) async fn follow(self: &Arc<Self>, health: &Health) {
        let follows = self.configured.load().follows().map(|directory| directory.join(FILE_NAME));
        let Some(path) = follows else { return std::future::pending().await };
        let mut seen = Seen::default();
        loop {
            let (accounts, copied) = (Arc::clone(self), path.clone());
            let looking = tokio::task::spawn_blocking(move || accounts.look_at(&copied, seen));
            let Ok((now_seen, looked)) = looking.await else { return std::future::pending().await };
            seen = now_seen;
            match looked {
                Looked::Nothing => {}
                Looked::TakenUp => {
                    health.clear(Fault::NoAccounts);
                    health.clear(Fault::AccountCopies);
                }
                Looked::Refused(error) => self.report_refused(&error, health),
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.look_now.notified() => {}
            }
        }
    }

    fn report_refused(&self, error: &AccountsError, health: &Health) {
        if self.awaits_accounts.load(Ordering::Acquire) {
            health.raise(
                Fault::NoAccounts,
                format!("{error}. No account is known here yet, and requests for tokens are answered 503"),
            );
        } else {
            health.raise(Fault::AccountCopies, format!("{error}. The accounts of before stay in force"));
        }
    }

    /// An operator has asked for a reload.
    pub(crate) fn look_now(&self) {
        self.look_now.notify_one();
    }

    fn look_at(&self, path: &Path, mut seen: Seen) -> (Seen, Looked) {
        let refused = |error: io::Error| copy::refused(path, &format!("it cannot be read ({error})"));
        let signature = match Signature::of(path) {
            Ok(signature) => signature,
            Err(error) => return (Seen::default(), Looked::Refused(refused(error))),
        };
        let is_still = seen.last.replace(signature) == Some(signature);
        if !is_still || seen.judged == Some(signature) {
            return (seen, Looked::Nothing); // a copy that is being written is not judged yet
        }
        let looked = match self.take_up_copy(path, signature) {
            Ok(()) => Looked::TakenUp,
            Err(error) => Looked::Refused(error),
        };
        // The secret is another file, and may come later.
        let is_final =
            !matches!(looked, Looked::Refused(AccountsError::Secret { .. } | AccountsError::Busy { .. }));
        seen.judged = is_final.then_some(signature);
        (seen, looked)
    }

    /// Takes up the copy at `path`, which was seen with this signature: whole, or not at all. Blocks on the disk.
    pub(super) fn take_up_copy(&self, path: &Path, signature: Signature) -> Result<(), AccountsError> {
        copy::take_up(&self.store, path, signature)?;
        self.take_up_database()?;
        self.awaits_accounts.store(false, Ordering::Release);
        let made = std::fs::metadata(path).and_then(|metadata| metadata.modified());
        let made = made.ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        gauge!(ISSUER_ACCOUNTS_COPIED).set(made.unwrap_or_default().as_secs_f64());
        Ok(())
    }
}
