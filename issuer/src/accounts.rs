//! The issuer's accounts: authorization of token requests, and usage of quotas.
//!
//! Accounts (`store`, `records`) and their usage (`usage`) are in a database; `ledger` keeps the recorded usage ahead of the signed
//! tokens. `authorize` finds the account of a request: by the form of its key (`api_key`), then in memory (`active`), then in the
//! database (`lookup`). `control` executes operators' changes.

mod active;
mod allowed;
pub(crate) mod api_key;
mod authorize;
mod authorizer;
mod configured;
pub(crate) mod control;
mod database;
mod ledger;
mod lookup;
mod records;
pub(crate) mod store;
mod usage;

use crate::StartError;
use crate::catalogue::{ACCOUNT, ACCOUNT_TOKENS};
use crate::health::{Fault, Health};
use crate::quota::{Charge, Quota, Writing};
use crate::recorder::Recorder;
pub(crate) use active::NoAccount;
use active::{Active, Holder};
use allowed::Allowed;
use arc_swap::{ArcSwap, ArcSwapOption};
pub(crate) use authorizer::{Authorizer, http_client};
pub(crate) use ledger::NoToken;
use ledger::{Ledger, WRITE_EVERY};
use lookup::Lookups;
use metrics::{Counter, counter};
use postern_daemon::fair_queue::Claim;
use postern_daemon::seldom::Seldom;
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::Store;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use configured::Configured;
pub(crate) use database::AccountsError;
pub(crate) use database::{FILE_NAME, check_directory, open as open_database, own_user};
pub(crate) use store::set_needs_account;

#[derive(Debug)]
pub(crate) struct Accounts {
    store: Arc<Store>,
    configured: ArcSwap<Configured>,
    active: Active,
    lookups: Lookups,
    authorizer: ArcSwapOption<Authorizer>,
    /// API keys that the authorizer allowed before.
    allowed: Allowed,
    ledger: Ledger,
    /// Stored forms of the API keys that this issuer did not generate, as in the database.
    made_elsewhere: ArcSwap<HashSet<[u8; 32]>>,
    /// `true` if tokens require an account, as in the database.
    needs_account: AtomicBool,
    /// `true` if the database has client certificates.
    has_certificates: AtomicBool,
    /// `true` if accounts or tiers changed since the last check that every account has terms.
    are_unchecked: AtomicBool,
}

/// Interval of merging and removing past periods.
const MAINTAIN_EVERY: Duration = Duration::from_secs(3_600);

/// State of the maintenance from one round to the next.
#[derive(Clone, Copy, Debug)]
struct Maintenance {
    /// Time of the next merge and removal of past periods.
    due: Instant,
    /// Latest [`Connection::version`](crate::database::Connection::version).
    seen: Option<i64>,
}

/// An account on the live page.
pub(crate) struct Shown {
    pub(crate) name: Arc<str>,
    /// Tokens issued in the present period.
    pub(crate) used: u64,
    pub(crate) quota: Quota,
}

/// The sender of a token request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Any client: the issuer has no accounts.
    Anyone,
    Account(Arc<Holder>),
}

impl Accounts {
    /// Opens the accounts in `store`. Blocks on the disk.
    pub(crate) fn open(configured: Configured, store: Store) -> Result<Self, StartError> {
        let store = Arc::new(store);
        store.check_pages()?;
        let lookups = Lookups::start(store.clone()).map_err(StartError::Threads)?;
        let accounts = Self {
            active: Active::default(),
            lookups,
            authorizer: ArcSwapOption::empty(),
            allowed: store.with(|connection| allowed::read(connection, UnixSeconds::now()))?,
            ledger: Ledger::new(store.clone()),
            made_elsewhere: ArcSwap::default(),
            needs_account: AtomicBool::new(false),
            has_certificates: AtomicBool::default(),
            are_unchecked: AtomicBool::new(true),
            store,
            configured: ArcSwap::default(),
        };
        accounts.take_up_authorizer(&configured)?;
        accounts.configured.store(Arc::new(configured));
        accounts.take_up_database()?;
        Ok(accounts)
    }

    /// Applies another reading of the configuration, which [`Config::check`](crate::Config) has accepted.
    pub(crate) fn replace(&self, configured: Arc<Configured>) {
        self.configured.store(configured);
        self.active.forget_all();
        self.are_unchecked.store(true, Ordering::Release);
    }

    /// Replaces or removes the authorizer. Results of the previous one stay in memory until [`Accounts::replace`].
    pub(crate) fn set_authorizer(&self, authorizer: Option<Authorizer>) {
        self.authorizer.store(authorizer.map(Arc::new));
    }

    /// Records that an authorizer makes tokens require an account, also after its removal: the issuer must not become open to
    /// everyone. Blocks on the disk.
    pub(crate) fn take_up_authorizer(&self, configured: &Configured) -> Result<(), AccountsError> {
        if configured.has_authorizer && self.is_open() {
            self.store.transact(store::set_needs_account).map_err(|error| self.store.error(&error))?;
            self.needs_account.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Drops the authorizer's cached answers. Operators who locked out a user expect this of a reload, even without a change.
    pub(crate) fn forget_answers(&self) {
        if let Some(authorizer) = &*self.authorizer.load() {
            authorizer.forget_all();
            self.active.forget_all();
        }
    }

    /// Reloads the parts of the database that are always in memory, and drops cached credentials.
    fn take_up_database(&self) -> Result<(), AccountsError> {
        // Stores under the lock: a change committed in between would be overwritten by what was read before it.
        self.store.with(|connection| {
            let keys = records::keys_made_elsewhere(connection)?;
            let needs_account = store::needs_account(connection)?;
            self.has_certificates.store(records::has_certificates(connection)?, Ordering::Release);
            self.made_elsewhere.store(Arc::new(keys.into_iter().collect()));
            self.needs_account.fetch_or(needs_account, Ordering::AcqRel); // never opened to everyone again
            Ok(())
        })?;
        self.active.forget_all();
        self.are_unchecked.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns `true` if tokens require no account, so that any client that reaches the issuer gets tokens.
    pub(crate) fn is_open(&self) -> bool {
        !self.needs_account.load(Ordering::Acquire)
    }

    /// Counts up to `most` tokens against the caller's quota, as many as it has left, once the database has reserved them. If
    /// dropped early, nothing counts against the quota.
    pub(crate) async fn charge(
        &self,
        caller: &Caller,
        most: u64,
        now: UnixSeconds,
    ) -> Result<Charge, NoToken> {
        let Caller::Account(holder) = caller else { return Ok(Charge::free(most)) };
        let taken = holder.pace.take(Instant::now(), most);
        let most = taken.map_err(|retry_after| NoToken::TooFast { retry_after })?;
        self.ledger.charge(holder, most, now).await
    }

    /// Returns `true` if metrics and the live page name accounts.
    fn are_named(&self) -> bool {
        self.configured.load().usage.name_accounts
    }

    /// Returns the caller's token counter, a no-op unless metrics name accounts.
    pub(crate) fn tokens_of(&self, caller: &Caller) -> Counter {
        match caller {
            Caller::Account(holder) if self.are_named() => {
                counter!(ACCOUNT_TOKENS, ACCOUNT.name => holder.name.to_string())
            }
            _ => Counter::noop(),
        }
    }

    /// Returns the accounts in memory, highest usage first; `None` if accounts are not named.
    pub(crate) fn shown(&self, now: UnixSeconds) -> Option<Vec<Shown>> {
        if !self.are_named() {
            return None;
        }
        let shown = |holder: Arc<Holder>| {
            let (used, quota) = holder.meter.standing(now);
            Shown { name: holder.name.clone(), used, quota }
        };
        let mut accounts: Vec<Shown> = self.active.holders().into_iter().map(shown).collect();
        accounts.sort_by(|one, other| other.used.cmp(&one.used).then_with(|| one.name.cmp(&other.name)));
        Some(accounts)
    }

    /// Writes the exact counts and the keys that the authorizer allowed, when the issuer stops.
    pub(crate) async fn save(self: &Arc<Self>, health: &Health) {
        self.write(Writing::Exact, health).await;
        let accounts = self.clone();
        let written = tokio::task::spawn_blocking(move || accounts.write_allowed()).await;
        if let Ok(Err(error)) = written {
            tracing::warn!("which API keys the authorizer has allowed cannot be written down: {error}");
        }
    }

    /// Writes usage on a blocking thread; returns `true` on success.
    async fn write(self: &Arc<Self>, writing: Writing, health: &Health) -> bool {
        let accounts = self.clone();
        let write = move || {
            let holders = if writing == Writing::Reserve { Vec::new() } else { accounts.active.holders() };
            accounts.ledger.write(holders, writing)
        };
        // A join error means that the runtime is shutting down.
        let Ok(written) = tokio::task::spawn_blocking(write).await else { return false };
        let is_written = written.is_ok();
        self.ledger.report(written, health);
        is_written
    }

    // ---- Maintenance: evicts idle accounts, detects changes by `sqlite3`, and removes old periods ----

    /// Writes reservations on demand, and the rest every `WRITE_EVERY`. Never returns; cancel safe.
    pub(crate) async fn keep_saving(self: Arc<Self>, health: &Health, recorder: &Recorder) {
        let mut ticks = interval(WRITE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut maintenance = Maintenance { due: Instant::now(), seen: None };
        loop {
            let writing = self.ledger.due(&mut ticks).await;
            let is_written = self.write(writing, health).await;
            if writing == Writing::Settle && is_written {
                maintenance = self.clone().maintain(health, recorder, maintenance).await;
            }
        }
    }

    async fn maintain(
        self: Arc<Self>,
        health: &Health,
        recorder: &Recorder,
        mut maintenance: Maintenance,
    ) -> Maintenance {
        recorder.set_active_accounts(self.active.let_go());
        self.check_terms(health).await;
        let keeping = tokio::task::spawn_blocking(move || {
            let kept = self.maintain_now(&mut maintenance);
            static REPORTED: Seldom = Seldom::every(Duration::from_secs(60));
            if let Err(error) = kept
                && REPORTED.due(Instant::now()).is_some()
            {
                tracing::warn!(
                    "changes of accounts are not looked for: {error}; it is tried again in {} seconds",
                    WRITE_EVERY.as_secs()
                );
            }
            maintenance
        });
        keeping.await.unwrap_or(maintenance)
    }

    /// Checks, after a change, that every account has terms, and reports the result to `health`.
    async fn check_terms(self: &Arc<Self>, health: &Health) {
        if !self.are_unchecked.swap(false, Ordering::AcqRel) {
            return;
        }
        let accounts = Arc::clone(self);
        let checking = tokio::task::spawn_blocking(move || {
            let configured = accounts.configured.load_full();
            accounts
                .store
                .with(|connection| records::without_tier(connection, |tier| configured.tiers.has(tier)))
        });
        match checking.await {
            Ok(Ok(without)) => health.set(Fault::Terms, no_terms(&without)),
            // The next round checks again; the database's error is reported elsewhere.
            Ok(Err(_)) | Err(_) => self.are_unchecked.store(true, Ordering::Release),
        }
    }

    fn maintain_now(&self, maintenance: &mut Maintenance) -> Result<(), AccountsError> {
        let version = self.store.with(crate::database::Connection::version)?;
        if maintenance.seen != Some(version) {
            self.take_up_database()?; // another issuer or program has changed the database, perhaps during the start
        }
        maintenance.seen = Some(version);
        self.write_allowed()?;
        let now = UnixSeconds::now();
        let is_due = maintenance.due <= Instant::now();
        if is_due && self.store.with(|connection| connection.clock_fault(now))?.is_none() {
            let kept_since = now.saturating_sub(self.configured.load().usage.keep_for.get());
            let maintained = self.store.with(|connection| usage::maintain(connection, now, kept_since));
            let has_more = maintained.unwrap_or_else(|error| {
                tracing::warn!(
                    "past periods of usage cannot be removed: {error}; it is tried again in an hour"
                );
                false
            });
            if !has_more {
                maintenance.due = Instant::now() + MAINTAIN_EVERY;
            }
        }
        Ok(())
    }

    /// Writes the keys that the authorizer allowed or denied since the last call. Blocks on the disk.
    fn write_allowed(&self) -> Result<(), AccountsError> {
        let changes = self.allowed.take_unwritten();
        if changes.is_empty() {
            return Ok(());
        }
        let written = self.store.transact(|transaction| allowed::write(transaction, &changes));
        written.map_err(|error| self.store.error(&error))
    }
}

/// Describes accounts whose tiers are not in the configuration; `None` if there are none.
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

impl Caller {
    pub(crate) fn claim(&self) -> Claim {
        match self {
            Self::Anyone => 0.into(),
            Self::Account(holder) => holder.claim(),
        }
    }
}

#[cfg(test)]
mod tests;
