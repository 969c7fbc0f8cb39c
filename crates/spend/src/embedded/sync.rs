//! The thread that syncs to disk, and the callers that wait for it.

use super::error::StoreError;
use super::log::EpochLog;
use crate::Unknown;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often writing is tried again while it fails.
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two log lines about it: a disk that is full intermittently must not fill the log.
const QUIET: Duration = Duration::from_secs(60);

/// When records are forced from the system's cache onto the disk. A crash of the process (`kill -9`) costs nothing
/// either way: every record has left the process before its spend is answered. The difference is a crash of the
/// machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer; one sync serves all spends that wait. Power loss costs nothing that was answered.
    Always,
    /// In the background at this interval, while answers go out at once. Power loss may make re-spendable what was
    /// admitted in the last interval, and in the time a sync takes. At least a millisecond.
    Interval(Duration),
}

impl Default for Fsync {
    /// Every second.
    fn default() -> Self {
        Self::Interval(Duration::from_secs(1))
    }
}

fn millis(fsync: Fsync) -> u64 {
    match fsync {
        Fsync::Always => 0,
        Fsync::Interval(interval) => u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1),
    }
}

/// Syncs the logs it is given until dropped, and then once more.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    synced: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The interval in milliseconds; 0 is [`Fsync::Always`].
    interval: AtomicU64,
    /// Spends whose records have been written, under [`Fsync::Always`]: a spend's ticket is its number.
    written: AtomicU64,
    /// A sync failed, and no later sync is trusted.
    failed: AtomicBool,
    room: Room,
    order: Mutex<Order>,
    bell: Condvar,
}

#[derive(Default)]
struct Order {
    sync: bool,
    /// Nothing can be written: a trial write is made every second.
    retry: bool,
    stop: bool,
}

/// What the thread works on.
pub(crate) trait Work: Send + 'static {
    /// The logs with records that callers may wait for.
    fn logs(&self) -> Vec<Arc<EpochLog>>;
    /// Writes as much as a record needs, and more; none of it is a record.
    fn try_to_write(&self) -> Result<(), StoreError>;
}

impl Syncer {
    /// Starts the thread.
    pub(crate) fn start(fsync: Fsync, work: impl Work) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared { interval: millis(fsync).into(), ..Shared::default() });
        let (sender, synced) = watch::channel(0);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("spend-sync".to_owned())
            .spawn(move || theirs.run(&sender, &work))
            .map_err(StoreError::Thread)?;
        Ok(Self { shared, synced, thread: Some(thread) })
    }

    /// Spends that begin from now on are synced so; those that wait for a sync get it.
    pub(crate) fn set(&self, fsync: Fsync) {
        self.shared.interval.store(millis(fsync), Ordering::Release);
        self.shared.ring(|order| order.sync = true);
    }

    /// Whether every sync so far succeeded.
    pub(crate) fn intact(&self) -> Result<(), Unknown> {
        if self.shared.failed.load(Ordering::Acquire) { Err(Unknown::SyncFailed) } else { Ok(()) }
    }

    /// Whether writing works, as far as is known.
    pub(crate) fn room(&self) -> Result<(), Unknown> {
        self.shared.room.known()
    }

    /// Records a failed write, and returns its meaning for a spend.
    pub(crate) fn no_room(&self, reason: Unknown, error: &dyn std::fmt::Display) -> Unknown {
        if self.shared.room.failed(reason, error) {
            self.shared.ring(|order| order.retry = true);
        }
        reason
    }

    /// Returns when what the caller has just written is as durable as the policy promises: at once with an interval,
    /// after the next sync otherwise. Dropping the future takes the caller off the list and has no other effect.
    pub(crate) async fn durable(&self) -> Result<(), Unknown> {
        if self.shared.interval().is_none() {
            let ticket = self.shared.written.fetch_add(1, Ordering::AcqRel) + 1;
            self.shared.ring(|order| order.sync = true);
            let mut synced = self.synced.clone();
            // An error here means that the thread has ended, so durability is not guaranteed.
            synced.wait_for(|synced| *synced >= ticket).await.map_err(|_| Unknown::SyncFailed)?;
        }
        self.intact()
    }

    /// Records a sync that failed elsewhere.
    pub(crate) fn fail(&self, error: &io::Error) {
        self.shared.fail(error);
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.ring(|order| order.stop = true);
        if let Some(thread) = self.thread.take() {
            _ = thread.join(); // it has synced a last time, and has logged a failure
        }
    }
}

impl Shared {
    /// The time between two syncs; none where each answer waits for one.
    fn interval(&self) -> Option<Duration> {
        match self.interval.load(Ordering::Acquire) {
            0 => None,
            interval => Some(Duration::from_millis(interval)),
        }
    }

    fn run(&self, synced: &watch::Sender<u64>, work: &dyn Work) {
        let mut tried = Instant::now();
        loop {
            let stop = self.next_order(self.interval());
            // In this order: a ticket that is out by now has its record written and its log marked and listed. (One that is no
            // longer listed has its tombstone on disk, which keeps the key spent.)
            let ticket = self.written.load(Ordering::Acquire);
            for log in work.logs() {
                if let Err(error) = log.sync() {
                    self.fail(&error);
                }
            }
            synced.send_replace(ticket);
            if stop {
                return;
            }
            if self.room.known().is_err() && tried.elapsed() >= RETRY {
                tried = Instant::now();
                self.try_to_write(work);
            }
        }
    }

    fn try_to_write(&self, work: &dyn Work) {
        match work.try_to_write() {
            Ok(()) => self.room.found(),
            Err(error) => _ = self.room.failed(error.unknown(), &error),
        }
    }

    /// Waits for a reason to sync; true when it is the last.
    fn next_order(&self, interval: Option<Duration>) -> bool {
        let retry = self.room.known().is_err().then_some(RETRY);
        let longest = interval.into_iter().chain(retry).min();
        let mut order = self.order.lock();
        let idle = |order: &mut Order| !order.sync && !order.stop && !order.retry;
        match longest {
            Some(longest) => _ = self.bell.wait_while_for(&mut order, idle, longest),
            None => self.bell.wait_while(&mut order, idle),
        }
        (order.sync, order.retry) = (false, false);
        order.stop
    }

    fn ring(&self, change: impl FnOnce(&mut Order)) {
        change(&mut self.order.lock());
        self.bell.notify_one();
    }

    /// After a failed sync the system may have thrown the pages away and call the next sync a success, so no later
    /// success is believed (<https://wiki.postgresql.org/wiki/Fsync_Errors>): all answers are unknown until the store
    /// is opened again.
    fn fail(&self, error: &io::Error) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "a sync of the double-spend store failed: every spend is refused until it is opened again; check the disk");
        }
    }
}

/// Whether records can be written: the result of the last write, or of a later trial write. Reading it costs one atomic load while writes succeed.
#[derive(Default)]
struct Room {
    missing: AtomicBool,
    state: Mutex<Outage>,
}

#[derive(Default)]
struct Outage {
    reason: Option<Unknown>,
    /// What was logged last, and when.
    logged: Option<(Unknown, Instant)>,
    /// Its end is still to be logged.
    open: bool,
}

impl Room {
    /// Why nothing can be written, by the last result.
    fn known(&self) -> Result<(), Unknown> {
        if !self.missing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state.lock().reason.map_or(Ok(()), Err)
    }

    /// Records a failed write. Returns true for the first failure: from then on trial writes are needed.
    fn failed(&self, reason: Unknown, error: &dyn std::fmt::Display) -> bool {
        let mut state = self.state.lock();
        state.reason = Some(reason);
        let new = !self.missing.swap(true, Ordering::AcqRel);
        let now = Instant::now();
        let logged = state.logged.is_some_and(|(logged, when)| logged == reason && now - when < QUIET);
        if new && !logged {
            (state.logged, state.open) = (Some((reason, now)), true);
            drop(state);
            tracing::error!(
                %error,
                "the double-spend store cannot write: requests are refused with 503 before their token is read, so none \
                 is lost. {} Writing is tried again every second",
                advice(reason)
            );
        }
        new
    }

    /// A trial write succeeded.
    fn found(&self) {
        let mut state = self.state.lock();
        state.reason = None;
        self.missing.store(false, Ordering::Release);
        if std::mem::take(&mut state.open) {
            drop(state);
            tracing::info!("the double-spend store can write again: tokens are taken");
        }
    }
}

fn advice(reason: Unknown) -> &'static str {
    match reason {
        Unknown::DiskFull => "Free disk space, or raise the quota or the limit on file sizes.",
        _ => "Check the disk and the permissions of the store's directory.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A disk without room for the first trial write, and how often it was looked at and tried.
    #[derive(Clone, Default)]
    struct Full(Arc<(AtomicUsize, AtomicUsize)>);

    impl Work for Full {
        fn logs(&self) -> Vec<Arc<EpochLog>> {
            self.0.0.fetch_add(1, Ordering::Relaxed);
            Vec::new()
        }

        fn try_to_write(&self) -> Result<(), StoreError> {
            match self.0.1.fetch_add(1, Ordering::Relaxed) {
                0 => Err(StoreError::Thread(io::ErrorKind::StorageFull.into())),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn writing_is_tried_again_once_a_second_while_it_fails_and_nothing_is_done_before() {
        let (disk, began) = (Full::default(), Instant::now());
        let looked = || disk.0.0.load(Ordering::Relaxed);
        let syncer = Syncer::start(Fsync::Interval(Duration::from_secs(3600)), disk.clone()).unwrap();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(looked(), 0, "no sync is due for an hour");
        assert_eq!(syncer.no_room(Unknown::DiskFull, &"full"), Unknown::DiskFull);
        while syncer.room().is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "no trial write succeeded");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(began.elapsed() >= 2 * RETRY, "{:?}", began.elapsed());
        assert_eq!(disk.0.1.load(Ordering::Relaxed), 2);
        assert!(looked() <= 4, "{}", looked());
    }
}
