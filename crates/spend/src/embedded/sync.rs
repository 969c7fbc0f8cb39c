//! The thread that syncs to disk, and those who wait for it.

use super::error::StoreError;
use super::log::EpochLog;
use crate::Unknown;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::sync::watch;

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

/// Syncs the logs it is given until dropped, and then once more.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    synced: watch::Receiver<u64>,
    always: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Spends whose records have been written, under [`Fsync::Always`]: a spend's ticket is its number.
    written: AtomicU64,
    /// A sync failed, and nothing is believed any more.
    failed: AtomicBool,
    order: Mutex<Order>,
    bell: Condvar,
}

#[derive(Default)]
struct Order {
    sync: bool,
    stop: bool,
}

impl Syncer {
    /// Starts the thread. `live` lists the logs there are whenever it is asked.
    pub(crate) fn start(
        fsync: Fsync,
        live: impl Fn() -> Vec<Arc<EpochLog>> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let (sender, synced) = watch::channel(0);
        let theirs = Arc::clone(&shared);
        let interval = match fsync {
            Fsync::Always => None,
            Fsync::Interval(interval) => Some(interval.max(Duration::from_millis(1))),
        };
        let thread = thread::Builder::new()
            .name("spend-sync".to_owned())
            .spawn(move || theirs.run(interval, &sender, &live))
            .map_err(StoreError::Thread)?;
        Ok(Self { shared, synced, always: fsync == Fsync::Always, thread: Some(thread) })
    }

    /// Whether every sync so far succeeded.
    pub(crate) fn intact(&self) -> Result<(), Unknown> {
        if self.shared.failed.load(Ordering::Acquire) { Err(Unknown::SyncFailed) } else { Ok(()) }
    }

    /// Returns when what the caller has just written is as durable as the policy promises: at once with an interval,
    /// after the next sync otherwise. Dropping the future takes the caller off the list and has no other effect.
    pub(crate) async fn durable(&self) -> Result<(), Unknown> {
        if self.always {
            let ticket = self.shared.written.fetch_add(1, Ordering::AcqRel) + 1;
            self.shared.ring(|order| order.sync = true);
            let mut synced = self.synced.clone();
            // An error here means that the thread is gone, and with it the promise.
            synced.wait_for(|synced| *synced >= ticket).await.map_err(|_| Unknown::SyncFailed)?;
        }
        self.intact()
    }

    /// Takes note of a sync that failed elsewhere.
    pub(crate) fn fail(&self, error: &io::Error) {
        self.shared.fail(error);
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.ring(|order| order.stop = true);
        if let Some(thread) = self.thread.take() {
            _ = thread.join(); // it has synced a last time, and has said so if that failed
        }
    }
}

impl Shared {
    fn run(
        &self,
        interval: Option<Duration>,
        synced: &watch::Sender<u64>,
        live: &dyn Fn() -> Vec<Arc<EpochLog>>,
    ) {
        loop {
            let stop = self.next_order(interval);
            // In this order: a ticket that is out by now has its record written and its log marked and listed. (A log
            // dropped meanwhile is not listed; its tombstone is on disk, and keeps the key spent.)
            let ticket = self.written.load(Ordering::Acquire);
            for log in live() {
                if let Err(error) = log.sync() {
                    self.fail(&error);
                }
            }
            synced.send_replace(ticket);
            if stop {
                return;
            }
        }
    }

    /// Waits for a reason to sync; true when it is the last.
    fn next_order(&self, interval: Option<Duration>) -> bool {
        let mut order = self.order.lock();
        match interval {
            Some(interval) if !order.stop => _ = self.bell.wait_for(&mut order, interval),
            _ => self.bell.wait_while(&mut order, |order| !order.sync && !order.stop),
        }
        order.sync = false;
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
