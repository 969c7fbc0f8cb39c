//! Whether a pool is worth a try.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::sync::Notify;

/// Failures in a row after which the pool stops trying and leaves it to the background.
const ENOUGH: u32 = 3;

/// Open while the store does not answer, so that callers are refused immediately.
#[derive(Default)]
pub(super) struct Breaker {
    closed: AtomicBool,
    failures: AtomicU32,
    pub(super) opened: Notify,
}

impl Breaker {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn succeeded(&self) {
        // A plain load first: the flag's cache line stays shared while all is well.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// True when this failure opened it.
    pub(super) fn failed(&self) -> bool {
        let enough = self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= ENOUGH;
        let opened = enough && self.closed.swap(false, Ordering::AcqRel);
        if opened {
            self.opened.notify_one();
        }
        opened
    }
}
