//! Recorded usage in the database, which is always ahead of the signed tokens.
//!
//! For each account, the database records an upper bound of the used tokens: the counted ones and the reservations of all issuers
//! ([`crate::quota`]). A request that needs more waits until a larger bound is on the disk. All waiting requests share one
//! commit, of the changed rows, and a reservation is renewed before it is used up, so that few requests wait. After a crash the
//! whole reservation counts as used: the account may lose it, and no token is issued beyond the quota. A stop gives it back.
//!
//! A change whose commit is unknown is not made again: a reservation that it may have made counts as used, and one that it may
//! have given back as well.

use super::active::Holder;
use super::database::AccountsError;
use super::store::{PATIENCE, Store};
use super::usage;
use crate::database::Error;
use crate::health::{Fault, Health};
use crate::quota::{Changed, Charge, NoCharge, Spent, Writing};
use parking_lot::Mutex;
use postern_token::UnixSeconds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, Interval, timeout_at};

/// Interval of writes while no request waits, and of retries after a failure.
pub(super) const WRITE_EVERY: Duration = Duration::from_secs(2);

/// The reason an account gets no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    Spent(Spent),
    /// The account exceeds its rate.
    TooFast {
        /// Time until the next token.
        retry_after: Duration,
    },
    /// The use of the quota cannot be recorded.
    Unrecorded,
}

/// The queue of accounts that wait for the database, and the state of writes.
#[derive(Debug)]
pub(super) struct Ledger {
    store: Arc<Store>,
    /// Accounts that need a reservation now or soon.
    queue: Mutex<Vec<Arc<Holder>>>,
    wanted: Notify,
    /// Lock from the choice of figures until they are written: writes are serialized, and a later write has later figures.
    turn: Mutex<()>,
    /// `true` if the last write failed. Waiting requests observe every attempt.
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

    /// Counts up to `most` tokens, once the database has reserved them. If dropped early, nothing is counted.
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
                    self.want(holder); // included in the next attempt
                    return Err(NoToken::Unrecorded);
                }
                Err(NoCharge::Unreserved) => {}
            }
            let _waiting = meter.wait(most);
            self.want(holder);
            // Only the deadline ends the wait with an error: the sender is in `self`.
            if timeout_at(deadline, attempts.changed()).await.is_err() {
                return Err(NoToken::Unrecorded);
            }
        }
    }

    fn want(&self, holder: &Arc<Holder>) {
        self.enqueue(holder);
        self.wanted.notify_one();
    }

    /// Completes when the database is to be written: when a reservation is needed, and at each of `ticks`. Cancel safe;
    /// for one caller at a time.
    pub(super) async fn due(&self, ticks: &mut Interval) -> Writing {
        let is_failing = *self.is_failing.borrow();
        tokio::select! {
            // While the database fails, ticks retry; requests do not.
            () = self.wanted.notified(), if !is_failing => Writing::Reserve,
            _ = ticks.tick() => Writing::Settle,
        }
    }

    /// Writes the usage of the accounts that wait, and of those of `holders` that changed. Blocks on the disk.
    pub(super) fn write(&self, holders: Vec<Arc<Holder>>, writing: Writing) -> Result<(), AccountsError> {
        let _turn = self.turn.lock();
        let mut queued = std::mem::take(&mut *self.queue.lock());
        // Requests from here on belong to the next turn.
        queued.iter().for_each(|holder| holder.is_queued.store(false, Ordering::Release));
        queued.extend(holders);
        // Once each, and by name: all issuers lock rows in one order.
        queued.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        queued.dedup_by_key(|holder| holder.number);
        let written = self.write_all(&queued, writing);
        if written.is_err() {
            queued.iter().for_each(|holder| self.enqueue(holder));
        }
        written
    }

    /// Queues an account without a wake-up: after a failure, the next tick retries.
    fn enqueue(&self, holder: &Arc<Holder>) {
        if !holder.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().push(holder.clone());
        }
    }

    fn write_all(&self, holders: &[Arc<Holder>], writing: Writing) -> Result<(), AccountsError> {
        self.store.with(|connection| {
            connection.version()?; // while the database is away, nothing is given back
            for holder in holders {
                if let Some(window) = holder.meter.unknown() {
                    let used = usage::read(connection, &holder.name, window)?;
                    holder.meter.know(window, used.unwrap_or_default(), UnixSeconds::now());
                }
            }
            Ok(())
        })?;
        let changes = |holder: &Arc<Holder>| {
            let holder = holder.clone();
            holder.meter.to_change(writing).into_iter().flatten().map(move |change| (holder.clone(), change))
        };
        let changes: Vec<_> = holders.iter().flat_map(changes).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let written = self.store.transact(|connection| {
            let each =
                changes.iter().map(|(holder, change)| usage::change(connection, &holder.name, *change));
            each.collect::<Result<Vec<_>, Error>>()
        });
        let now = UnixSeconds::now();
        for (index, (holder, change)) in changes.into_iter().enumerate() {
            let changed = match &written {
                Ok(done) => Changed::Done { tokens: done[index].0, reserved: done[index].1 },
                Err(Error::Unsure(_)) => Changed::Unsure,
                Err(_) => Changed::Undone,
            };
            holder.meter.changed(change, changed, now);
        }
        written.map(drop).map_err(|error| self.store.error(&error))
    }

    /// Reports the result of a write to waiting requests and to the operator.
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
