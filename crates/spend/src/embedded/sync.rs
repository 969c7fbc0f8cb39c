//! The thread that syncs to disk, and the callers that wait for it.

use super::directory::StoreError;
use super::log::EpochLog;
use crate::Unknown;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Interval between trial writes while writing fails.
const RETRY: Duration = Duration::from_secs(1);
/// Minimum interval between two log lines about failed writes: an intermittently full disk must not fill the log.
const QUIET: Duration = Duration::from_secs(60);

/// The moment at which records move from the system's cache to the disk, which matters only for a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before each answer; one sync serves all waiting spends. Power loss costs no answered spend.
    Always,
    /// In the background at this interval (at least a millisecond), while answers do not wait. After power loss, tokens admitted
    /// during the last interval or a sync may be spent again.
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

/// The handle of the sync thread. Dropping it syncs once more and ends the thread.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    synced: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The interval in milliseconds; 0 is [`Fsync::Always`].
    interval: AtomicU64,
    /// Number of written records under [`Fsync::Always`]; a spend's ticket is its number.
    written: AtomicU64,
    /// A sync failed; no later sync is trusted.
    failed: AtomicBool,
    room: Room,
    order: Mutex<Order>,
    bell: Condvar,
}

#[derive(Default)]
struct Order {
    sync: bool,
    /// Nothing can be written: the thread makes a trial write every second.
    retry: bool,
    stop: bool,
}

pub(crate) trait Work: Send + 'static {
    /// Returns the logs with records that callers may wait for.
    fn logs(&self) -> Vec<Arc<EpochLog>>;
    /// Writes more than a record needs, but no record.
    fn try_to_write(&self) -> Result<(), StoreError>;
}

impl Syncer {
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

    /// Changes the setting for spends from now on; spends that already wait for a sync get it.
    pub(crate) fn set(&self, fsync: Fsync) {
        self.shared.interval.store(millis(fsync), Ordering::Release);
        self.shared.ring(|order| order.sync = true);
    }

    /// Returns `Ok` if every sync so far succeeded.
    pub(crate) fn intact(&self) -> Result<(), Unknown> {
        if self.shared.failed.load(Ordering::Acquire) { Err(Unknown::SyncFailed) } else { Ok(()) }
    }

    /// Returns `Ok` unless a write failed and no trial write has succeeded since.
    pub(crate) fn room(&self) -> Result<(), Unknown> {
        self.shared.room.known()
    }

    pub(crate) fn no_room(&self, reason: Unknown, error: &dyn std::fmt::Display) -> Unknown {
        if self.shared.room.failed(reason, error) {
            self.shared.ring(|order| order.retry = true);
        }
        reason
    }

    /// Waits until the caller's last write is as durable as the setting promises: not at all with an interval, otherwise for the
    /// next sync. Dropping the future only removes the caller from the waiters.
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
    /// Returns the interval between two syncs; `None` if each answer waits for a sync.
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
            // Order matters: when a ticket is visible, its record is written and its log is marked dirty and listed. (A log that
            // is no longer listed has its tombstone on disk, which keeps the key spent.)
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

    /// Waits for a reason to sync; returns `true` if it is the last.
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

    /// Records a failed sync. The system may then discard the pages and report the next sync as a success, so no later success
    /// is trusted (<https://wiki.postgresql.org/wiki/Fsync_Errors>): all answers are unknown until the store is reopened.
    fn fail(&self, error: &io::Error) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "a sync of the double-spend store failed: every spend is refused until it is opened again; check the disk");
        }
    }
}

/// The outage of writing: begins with a failed write and ends with a successful trial write. Reading it costs one atomic load
/// while writes succeed.
#[derive(Default)]
struct Room {
    missing: AtomicBool,
    state: Mutex<Outage>,
}

#[derive(Default)]
struct Outage {
    reason: Option<Unknown>,
    /// The last logged reason, and its time.
    logged: Option<(Unknown, Instant)>,
    /// The end of the outage is still to be logged.
    open: bool,
}

impl Room {
    /// Returns the reason of the current outage as an error.
    fn known(&self) -> Result<(), Unknown> {
        if !self.missing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state.lock().reason.map_or(Ok(()), Err)
    }

    /// Records a failed write. Returns `true` for the first failure: from then on trial writes are needed.
    fn failed(&self, reason: Unknown, error: &dyn std::fmt::Display) -> bool {
        let mut state = self.state.lock();
        state.reason = Some(reason);
        let new = !self.missing.swap(true, Ordering::AcqRel);
        let now = Instant::now();
        let logged = state.logged.is_some_and(|(logged, when)| logged == reason && now - when < QUIET);
        if new && !logged {
            (state.logged, state.open) = (Some((reason, now)), true);
            drop(state);
            let advice = match reason {
                Unknown::DiskFull => "Free disk space, or raise the quota or the limit on file sizes.",
                _ => "Check the disk and the permissions of the store's directory.",
            };
            tracing::error!(
                %error,
                "the double-spend store cannot write: requests are refused with 503 before their token is read, so none \
                 is lost. {advice} Writing is tried again every second"
            );
        }
        new
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// A disk without room for the first trial write, with counts of the syncs and of the trial writes.
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
