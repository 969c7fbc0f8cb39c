//! The usage in the database, which is always ahead of the tokens that are signed.
//!
//! For each account it says how many tokens it may have used at most: those that are counted, and a reservation
//! ([`crate::quota`]). A request that needs more waits until the database is on the disk with it. All that wait then share one
//! commit, of the rows that change, and a reservation is renewed before it is used up, so that few wait. After a crash the whole
//! reservation counts as used: the account may lose it, and no token is issued beyond the quota. A stop writes the exact figures.

use super::NoToken;
use super::active::Holder;
use super::database::AccountsError;
use super::store::{Change, Store};
use super::usage;
use crate::health::{Fault, Health};
use crate::quota::{Charge, NoCharge, Writing};
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, timeout_at};

/// How often the database is brought up to date while nothing waits for it, and tried again after a failure.
pub(super) const WRITE_EVERY: Duration = Duration::from_secs(2);
/// How long a request waits for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who waits for the database, and whether it can be written.
#[derive(Debug)]
pub(super) struct Ledger {
    store: Arc<Store>,
    /// Accounts that need a reservation, or soon will.
    queue: Mutex<Vec<Arc<Holder>>>,
    wanted: Notify,
    /// Held from the decision what to write until it is written: there is one at a time, and a later one has the later figure.
    turn: Mutex<()>,
    /// Whether the last attempt to write failed. Every attempt is seen by those who wait.
    is_failing: watch::Sender<bool>,
}

impl Ledger {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            queue: Mutex::default(),
            wanted: Notify::new(),
            turn: Mutex::default(),
            is_failing: watch::Sender::new(false),
        }
    }

    /// Counts up to `most` tokens, once the database allows for them. Dropped early, it counts nothing.
    pub(super) async fn charge(
        &self,
        holder: &Arc<Holder>,
        most: u64,
        now: UnixSeconds,
    ) -> Result<Charge, NoToken> {
        let deadline = Instant::now() + PATIENCE;
        let mut attempts = self.is_failing.subscribe();
        let meter = &holder.meter;
        loop {
            let is_failing = *attempts.borrow_and_update();
            match meter.charge(most, now) {
                Ok(charge) => {
                    if meter.is_low() {
                        self.want(holder);
                    }
                    return Ok(charge);
                }
                Err(NoCharge::Spent(spent)) => return Err(NoToken::Spent(spent)),
                Err(NoCharge::Unreserved) if is_failing => {
                    self.want(holder); // the next attempt is for this one, too
                    return Err(NoToken::Unrecorded);
                }
                Err(NoCharge::Unreserved) => {}
            }
            let _waiting = meter.wait(most);
            self.want(holder);
            // The sender lives in `self`, so it is only the deadline that can end this with an error.
            if timeout_at(deadline, attempts.changed()).await.is_err() {
                return Err(NoToken::Unrecorded);
            }
        }
    }

    fn want(&self, holder: &Arc<Holder>) {
        if !holder.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().push(holder.clone());
        }
        self.wanted.notify_one();
    }

    /// Completes when the database is to be written: when a reservation is wanted, and at each tick of `upkeep`. Cancel safe; one
    /// listener.
    pub(super) async fn due(&self, upkeep: &mut Interval) -> Writing {
        let is_failing = *self.is_failing.borrow();
        tokio::select! {
            // A disk that fails is not tried again for each request.
            () = self.wanted.notified(), if !is_failing => Writing::Reserve,
            _ = upkeep.tick() => Writing::Settle,
        }
    }

    /// Brings the database up to date with the accounts that wait, and with those of `holders` that have changed. Blocks on the
    /// disk.
    pub(super) fn write(&self, holders: Vec<Arc<Holder>>, writing: Writing) -> Result<(), AccountsError> {
        let _turn = self.turn.lock();
        let mut queued = std::mem::take(&mut *self.queue.lock());
        // Whoever comes from here on is for the next turn.
        queued.iter().for_each(|holder| holder.is_queued.store(false, Ordering::Release));
        queued.extend(holders);
        // Once each: the figure of a second look may be lower than what the first one reserved.
        queued.sort_unstable_by_key(|holder| holder.number);
        queued.dedup_by_key(|holder| holder.number);
        let written = self.write_all(&queued, writing);
        if written.is_err() {
            queued.iter().for_each(|holder| self.requeue(holder));
        }
        written
    }

    /// Without a wake: the next tick tries again.
    fn requeue(&self, holder: &Arc<Holder>) {
        if !holder.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().push(holder.clone());
        }
    }

    fn write_all(&self, holders: &[Arc<Holder>], writing: Writing) -> Result<(), AccountsError> {
        self.store.with(|connection| {
            for holder in holders {
                if let Some(nothing) = holder.meter.unknown() {
                    holder.meter.know(usage::read(connection, &holder.name, nothing)?);
                }
            }
            Ok(())
        })?;
        let figures: Vec<_> = holders
            .iter()
            .flat_map(|holder| {
                holder.meter.to_write(writing).into_iter().flatten().map(move |usage| (holder, usage))
            })
            .collect();
        if figures.is_empty() {
            return Ok(());
        }
        self.store.write(|transaction| {
            for (holder, usage) in &figures {
                usage::write(transaction, &holder.name, *usage)?;
            }
            Ok::<_, Change<AccountsError>>(())
        })?;
        figures.into_iter().for_each(|(holder, usage)| holder.meter.written(usage));
        Ok(())
    }

    /// How an attempt to write has ended: for those who wait, and for the operator.
    pub(super) fn report(&self, written: Result<(), AccountsError>, health: &Health) {
        self.is_failing.send_replace(written.is_err());
        match written {
            Ok(()) => health.clear(Fault::Counts),
            Err(error) => health.raise(
                Fault::Counts,
                format!(
                    "the quota counts cannot be written: {error}. No account gets tokens beyond what was reserved for it before, \
                     for a restart would forget how many: further requests are answered 503"
                ),
            ),
        }
    }
}
