//! Accounts: who may request tokens, and how many each has received.
//!
//! Accounts are in a database (`store`, `records`), and so is their usage (`usage`), which `ledger` keeps ahead of the tokens that are
//! signed. `authorize` finds the account of a request: by the
//! form of its key (`api_key`), then in memory (`active`), then on the disk (`lookup`). `control` is how operators change accounts,
//! and `follow` how an issuer has those of another one. `shares` is which part of every quota this issuer gives.

mod active;
mod allowed;
mod api_key;
mod authorize;
mod authorizer;
mod certificates;
mod configured;
pub(crate) mod control;
mod database;
mod follow;
mod ledger;
mod lookup;
mod records;
mod shares;
mod store;
mod tiers;
mod upkeep;
mod usage;

use crate::StartError;
use crate::catalogue::{ACCOUNT, ACCOUNT_TOKENS, GROUP, ISSUER_SHARE};
use crate::config::UsageConfig;
use crate::health::Health;
use crate::quota::{Charge, Quota, Spent, Writing};
use crate::recorder::Recorder;
use crate::share::SharesInForce;
use active::{Active, Holder};
use allowed::Allowed;
use arc_swap::{ArcSwap, ArcSwapOption};
pub(crate) use authorizer::Authorizer;
pub(crate) use follow::examine_copy;
use ledger::{Ledger, WRITE_EVERY};
use lookup::Lookups;
use metrics::{Counter, counter, gauge};
use postern_daemon::fair_queue::Claim;
use postern_token::UnixSeconds;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use store::{Change, Store};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use upkeep::Upkeep;

pub(crate) use configured::{Configured, check_tiers};
pub use database::AccountsError;
pub(crate) use database::{FILE_NAME, check_directory, own_user};
pub(crate) use follow::LOOK_EVERY;
pub(crate) use store::{has_accounts, inspect};

/// The accounts of an issuer.
#[derive(Debug)]
pub(crate) struct Accounts {
    store: Arc<Store>,
    configured: ArcSwap<Configured>,
    active: Active,
    lookups: Lookups,
    authorizer: ArcSwapOption<Authorizer>,
    /// Keys that an authorizer has allowed.
    allowed: Allowed,
    ledger: Ledger,
    /// What the database has of the keys that were not made here.
    made_elsewhere: ArcSwap<HashSet<[u8; 32]>>,
    /// The database says that tokens are for accounts.
    needs_account: AtomicBool,
    /// For how long the usage of past periods is kept, in seconds.
    kept_for: AtomicU64,
    /// Metrics and live page name accounts.
    are_named: AtomicBool,
    /// The database has clients' certificates.
    has_certificates: AtomicBool,
    /// Accounts or tiers have changed since it was checked that every account has terms.
    are_unchecked: AtomicBool,
    /// Which part of every quota this issuer gives.
    shares: SharesInForce,
    /// It follows another issuer, and has never had a copy of its accounts.
    awaits_accounts: AtomicBool,
    /// Wakes what looks at the copies.
    look_now: Notify,
}

/// An account on the live page.
pub(crate) struct Shown {
    pub(crate) name: Arc<str>,
    /// Tokens issued in the present period.
    pub(crate) used: u64,
    pub(crate) quota: Quota,
}

/// Who sends a request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Anyone: the issuer has no accounts.
    Anyone,
    /// One of the accounts.
    Account(Arc<Holder>),
}

/// Why an account gets no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// Its quota is used up.
    Spent(Spent),
    /// It requests tokens faster than it may.
    TooFast {
        /// How long until it may have the next one.
        retry_after: Duration,
    },
    /// It cannot be written down that the quota is used.
    Unrecorded,
}

/// Why no account was found that gets tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAccount {
    /// There is none, or it is not `Authorization: Bearer KEY`.
    Missing,
    /// It belongs to no account.
    Unknown,
    /// It begins as a key of ours, and its checksum is wrong.
    Damaged,
    /// Another key has taken its place.
    Retired,
    /// Its account is disabled.
    Disabled,
    /// Its account's time is over.
    Expired,
    /// Its account has the terms of a tier that the configuration does not have.
    NoTier,
    /// There is no API key, and the client's certificate is of no account.
    StrangeCertificate,
    /// The client's certificate is of another account.
    Contradiction,
    /// The authorizer refuses the key, perhaps for this reason.
    Denied(Option<Arc<str>>),
    /// The authorizer does not say whose the key is.
    Unanswered,
    /// The authorizer was not asked about the key: too many that it has not allowed before came at once.
    Crowded,
    /// The database cannot be read.
    Unreadable,
}

impl Accounts {
    /// The accounts of the database in `directory`, whose lock the caller has. Blocks on the disk.
    pub(crate) fn open(
        configured: Configured,
        directory: &Path,
        usage: &UsageConfig,
    ) -> Result<Self, StartError> {
        let store = Arc::new(Store::open(directory)?);
        store.check_pages()?;
        let lookups = Lookups::start(store.clone()).map_err(StartError::Threads)?;
        let shares = SharesInForce::default();
        let accounts = Self {
            configured: ArcSwap::default(),
            active: Active::new(shares.clone()),
            lookups,
            authorizer: ArcSwapOption::empty(),
            allowed: store.with(|connection| allowed::read(connection, UnixSeconds::now()))?,
            ledger: Ledger::new(store.clone()),
            made_elsewhere: ArcSwap::default(),
            needs_account: AtomicBool::new(false),
            kept_for: AtomicU64::default(),
            are_named: AtomicBool::default(),
            has_certificates: AtomicBool::default(),
            are_unchecked: AtomicBool::new(true),
            shares,
            awaits_accounts: AtomicBool::default(),
            look_now: Notify::new(),
            store,
        };
        accounts.take_up_share(&configured)?;
        accounts.configured.store(Arc::new(configured));
        accounts.begin_to_follow()?;
        accounts.take_up_usage(usage);
        accounts.take_up_database()?;
        Ok(accounts)
    }

    /// Takes what another reading of the configuration says, which [`check_tiers`] has let pass.
    pub(crate) fn replace(&self, configured: Configured, usage: &UsageConfig) {
        self.configured.store(Arc::new(configured));
        self.take_up_usage(usage);
        self.active.forget_all();
        self.are_unchecked.store(true, Ordering::Release);
    }

    /// Another authorizer from now on, or none; what one before has answered is forgotten by [`Accounts::replace`]. With one,
    /// tokens are for accounts, and stay so: without it, too, the issuer must not be open to everyone. Blocks on the disk.
    pub(crate) fn take_up_authorizer(&self, authorizer: Option<Authorizer>) -> Result<(), AccountsError> {
        if authorizer.is_some() {
            self.store.write(|transaction| {
                Ok::<_, Change<AccountsError>>(store::set_needs_account(transaction)?)
            })?;
            self.needs_account.store(true, Ordering::Release);
        }
        self.authorizer.store(authorizer.map(Arc::new));
        Ok(())
    }

    /// The share of another reading of the configuration, from now on: a smaller one at once, a larger one from the next period on.
    /// Blocks on the disk.
    pub(crate) fn take_up_share(&self, configured: &Configured) -> Result<(), AccountsError> {
        let joins = configured.follows().is_some();
        self.shares.set(self.store.take_up_share(configured.share(), joins, UnixSeconds::now())?);
        if let Some(group) = &configured.group {
            gauge!(ISSUER_SHARE, GROUP.name => group.name.clone()).set(group.share.ratio());
        }
        Ok(())
    }

    /// Forgets what the authorizer has answered, as an operator who has shut out a user expects of a reload without a change.
    pub(crate) fn forget_answers(&self) {
        if let Some(authorizer) = &*self.authorizer.load() {
            authorizer.forget_all();
            self.active.forget_all();
        }
    }

    fn take_up_usage(&self, usage: &UsageConfig) {
        self.kept_for.store(usage.keep_for.get().as_secs(), Ordering::Relaxed);
        self.are_named.store(usage.name_accounts, Ordering::Relaxed);
    }

    /// What of the database is in memory without having been asked for.
    fn take_up_database(&self) -> Result<(), AccountsError> {
        let (needs_account, keys, has_certificates) = self.store.with(|connection| {
            let keys = records::keys_made_elsewhere(connection)?;
            Ok((store::needs_account(connection)?, keys, certificates::exist(connection)?))
        })?;
        self.has_certificates.store(has_certificates, Ordering::Release);
        self.made_elsewhere.store(Arc::new(keys.into_iter().collect()));
        self.needs_account.store(needs_account, Ordering::Release);
        self.active.forget_all();
        self.are_unchecked.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether there is no account, so that anyone who reaches the issuer gets tokens.
    pub(crate) fn is_open(&self) -> bool {
        !self.needs_account.load(Ordering::Acquire)
    }

    /// Counts up to `most` tokens against the caller's quota, as many as it has left, once the database allows for them. Dropped
    /// early, it counts nothing.
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

    /// The counter of the caller's tokens, where accounts are named.
    pub(crate) fn tokens_of(&self, caller: &Caller) -> Counter {
        match caller {
            Caller::Account(holder) if self.are_named.load(Ordering::Relaxed) => {
                counter!(ACCOUNT_TOKENS, ACCOUNT.name => holder.name.to_string())
            }
            _ => Counter::noop(),
        }
    }

    /// The accounts in memory, those first that have used most; none where accounts are not named.
    pub(crate) fn shown(&self, now: UnixSeconds) -> Option<Vec<Shown>> {
        if !self.are_named.load(Ordering::Relaxed) {
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

    /// Writes the exact counts, and what the authorizer has said, as the issuer stops.
    pub(crate) async fn save(self: &Arc<Self>, health: &Health) {
        self.write(Writing::Exact, health).await;
        let accounts = self.clone();
        let written = tokio::task::spawn_blocking(move || accounts.write_allowed()).await;
        if let Ok(Err(error)) = written {
            tracing::warn!("which API keys the authorizer has allowed cannot be written down: {error}");
        }
    }

    /// Writes reservations when they are needed, and the rest periodically. Never ends; cancel safe.
    pub(crate) async fn keep_saving(self: Arc<Self>, health: &Health, recorder: &Recorder) {
        let mut ticks = interval(WRITE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut upkeep = Upkeep { due: Instant::now(), seen: None };
        loop {
            let writing = self.ledger.due(&mut ticks).await;
            let is_written = self.write(writing, health).await;
            if writing == Writing::Settle && is_written {
                upkeep = self.clone().keep_up(health, recorder, upkeep).await;
            }
        }
    }

    /// Whether it was written.
    async fn write(self: &Arc<Self>, writing: Writing, health: &Health) -> bool {
        let accounts = self.clone();
        let write = move || {
            let holders = if writing == Writing::Reserve { Vec::new() } else { accounts.active.holders() };
            accounts.ledger.write(holders, writing)
        };
        // An error of the join means that the runtime is shutting down.
        let Ok(written) = tokio::task::spawn_blocking(write).await else { return false };
        let is_written = written.is_ok();
        self.ledger.report(written, health);
        is_written
    }
}

impl Caller {
    /// What is due to it in the signing queue.
    pub(crate) fn claim(&self) -> Claim {
        match self {
            Self::Anyone => 0.into(),
            Self::Account(holder) => holder.claim(),
        }
    }
}

#[cfg(test)]
mod tests;
