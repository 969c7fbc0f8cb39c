//! What is done every few seconds: accounts leave memory, changes by `sqlite3` are noticed, old periods go.

use super::store::Change;
use super::{Accounts, AccountsError, allowed, records, usage};
use crate::health::{Fault, Health};
use crate::recorder::Recorder;
use crate::share::Share;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often past periods are merged and removed.
const UPKEEP_EVERY: Duration = Duration::from_secs(3_600);

/// What upkeep remembers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upkeep {
    /// When past periods are looked at next.
    pub(super) due: Instant,
    /// SQLite's count of the changes that other connections have made.
    pub(super) seen: Option<i64>,
}

impl Accounts {
    pub(super) async fn keep_up(
        self: Arc<Self>,
        health: &Health,
        recorder: &Recorder,
        mut upkeep: Upkeep,
    ) -> Upkeep {
        recorder.set_active_accounts(self.active.let_go());
        self.check_terms(health).await;
        let keeping = tokio::task::spawn_blocking(move || {
            let kept = self.upkeep(&mut upkeep);
            if let Err(error) = kept {
                tracing::warn!(
                    "past periods of usage cannot be removed: {error}; it is tried again in an hour"
                );
                upkeep.due = Instant::now() + UPKEEP_EVERY;
            }
            upkeep
        });
        keeping.await.unwrap_or(upkeep)
    }

    /// Whether every account has terms, after a change.
    async fn check_terms(self: &Arc<Self>, health: &Health) {
        if !self.are_unchecked.swap(false, Ordering::AcqRel) {
            return;
        }
        let accounts = Arc::clone(self);
        let checking = tokio::task::spawn_blocking(move || {
            let configured = accounts.configured.load_full();
            let most = configured.share().most_without();
            accounts.store.with(|connection| {
                let without = records::without_tier(connection, |tier| configured.tiers.has(tier))?;
                let none = if most == 0 { 0 } else { records::with_at_most(connection, most)? };
                Ok((without, none, configured.share(), configured.without_token()))
            })
        });
        match checking.await {
            Ok(Ok((without, none, share, of_tiers))) => {
                match no_terms(&without) {
                    Some(reason) => health.raise(Fault::Terms, reason),
                    None => health.clear(Fault::Terms),
                }
                match no_token(share, none, &of_tiers) {
                    Some(reason) => health.raise(Fault::Share, reason),
                    None => health.clear(Fault::Share),
                }
            }
            // It is looked at again; why the database cannot be read is said elsewhere.
            Ok(Err(_)) | Err(_) => self.are_unchecked.store(true, Ordering::Release),
        }
    }

    pub(super) fn upkeep(&self, upkeep: &mut Upkeep) -> Result<(), AccountsError> {
        let version: i64 = self
            .store
            .with(|connection| connection.pragma_query_value(None, "data_version", |row| row.get(0)))?;
        if upkeep.seen.replace(version).is_some_and(|seen| seen != version) {
            self.take_up_database()?; // another program has changed something
        }
        self.write_allowed()?;
        let now = UnixSeconds::now();
        if upkeep.due <= Instant::now() {
            let kept_since = now.saturating_sub(Duration::from_secs(self.kept_for.load(Ordering::Relaxed)));
            let has_more = self.store.with(|connection| usage::upkeep(connection, now, kept_since))?;
            if !has_more {
                upkeep.due = Instant::now() + UPKEEP_EVERY;
            }
        }
        Ok(())
    }
}

impl Accounts {
    /// Writes which keys the authorizer has allowed or denied since the last time. Blocks on the disk.
    pub(super) fn write_allowed(&self) -> Result<(), AccountsError> {
        if !self.allowed.has_unwritten() {
            return Ok(());
        }
        let changes = self.allowed.take_unwritten();
        self.store.write(|transaction| Ok::<_, Change<AccountsError>>(allowed::write(transaction, &changes)?))
    }
}

/// What is wrong where accounts have the terms of tiers that there are not.
fn no_terms(without: &[(String, u64)]) -> Option<String> {
    let tiers: Vec<_> =
        without.iter().map(|(tier, accounts)| format!("{tier:?} ({accounts} accounts)")).collect();
    (!tiers.is_empty()).then(|| {
        format!(
            "accounts have the terms of tiers that the configuration does not have: {}. They get no tokens (403): \
             add the tiers to [[tiers]] and reload (SIGHUP), or give the accounts another tier or a quota with `postern issuer \
             account quota`",
            tiers.join(", ")
        )
    })
}

/// What is wrong where this issuer's share of a quota is less than one token: of a number of accounts, and of these tiers.
fn no_token(share: Share, of_accounts: u64, of_tiers: &[String]) -> Option<String> {
    if of_accounts == 0 && of_tiers.is_empty() {
        return None;
    }
    let of_tiers = of_tiers.iter().map(|place| format!(", {place}")).collect::<String>();
    Some(format!(
        "this issuer's share ({share}) of some quotas is less than one token, so it gives none of them: {of_accounts} \
         accounts{of_tiers}. Other issuers of the group have to give them all: raise [group] share or those quotas"
    ))
}
