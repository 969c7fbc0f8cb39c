//! Accounts of an issuer that follows another one: they are taken from copies of the first issuer's database.
//!
//! Accounts that were taken up are in this issuer's own database, so they survive a damaged copy and a restart. Usage stays this
//! issuer's own: no copy restores tokens that an account has used here.

mod copy;

use super::store::set_needs_account;
use super::{Accounts, AccountsError, FILE_NAME, records};
use crate::catalogue::ISSUER_ACCOUNTS_COPIED;
use crate::health::{Fault, Health};
use copy::FOLLOWED;
pub(super) use copy::Signature;
use metrics::gauge;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

/// Interval between looks at the copies.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The state of the copy at earlier looks.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    last: Option<Signature>,
    /// Last signature that was taken up or refused.
    judged: Option<Signature>,
}

/// The result of a look; `None` if there is nothing new, or a copy that is still being written.
type Looked = Option<Result<(), AccountsError>>;

/// Returns the age of the copy in `directory`.
///
/// # Errors
/// The reason a follower would refuse the copy, as far as its files show; the content of the database is not compared.
pub(crate) fn examine_copy(directory: &Path) -> Result<Duration, AccountsError> {
    let path = directory.join(FILE_NAME);
    let made = copy::readable(&path)?;
    copy::secret_next_to(&path)?;
    Ok(made.elapsed().unwrap_or_default())
}

impl Accounts {
    /// Prepares a follower: until the first issuer's accounts arrive, no client gets tokens.
    pub(super) fn begin_to_follow(&self) -> Result<(), AccountsError> {
        if self.configured.load().follows().is_none() {
            return Ok(());
        }
        let has_followed = self.store.write(|transaction| {
            set_needs_account(transaction)?;
            Ok(records::setting(transaction, FOLLOWED)?.is_some())
        })?;
        self.awaits_accounts.store(!has_followed, Ordering::Release);
        Ok(())
    }

    /// Reports missing accounts in `/readyz` before the first look.
    pub(crate) fn report_awaited(&self, health: &Health) {
        if self.awaits_accounts.load(Ordering::Acquire) {
            health.raise(
                Fault::NoAccounts,
                "the accounts of the first issuer have not been taken up yet, and requests for tokens are answered 503",
            );
        }
    }

    /// Takes up copies of the first issuer's accounts as they arrive, if this issuer follows one. Never returns; cancel safe: a
    /// change that has begun completes on its own thread.
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
                None => {}
                Some(Ok(())) => {
                    health.clear(Fault::NoAccounts);
                    health.clear(Fault::AccountCopies);
                }
                Some(Err(error)) => self.report_refused(&error, health),
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

    /// Triggers a look at the copies, on a reload.
    pub(crate) fn look_now(&self) {
        self.look_now.notify_one();
    }

    fn look_at(&self, path: &Path, mut seen: Seen) -> (Seen, Looked) {
        let signature = match Signature::of(path) {
            Ok(signature) => signature,
            Err(error) => return (Seen::default(), Some(Err(copy::unreadable(path, &error)))),
        };
        let is_still = seen.last.replace(signature) == Some(signature);
        if !is_still || seen.judged == Some(signature) {
            return (seen, None); // still being written, or judged before
        }
        let looked = self.take_up_copy(path, signature);
        // The secret is another file, and may arrive later.
        let is_final = !matches!(looked, Err(AccountsError::Secret { .. } | AccountsError::Busy { .. }));
        seen.judged = is_final.then_some(signature);
        (seen, Some(looked))
    }

    /// Takes up the copy at `path`, which had this signature: completely, or not at all. Blocks on the disk.
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
