//! Whether records can be written: the result of the last write, or of a later trial write.

use crate::Unknown;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often writing is tried again while it fails.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The shortest time between two log lines about it: a disk that is full intermittently must not fill the log.
const QUIET: Duration = Duration::from_secs(60);

/// The last result. Reading it costs one atomic load while writes succeed.
#[derive(Default)]
pub(crate) struct Room {
    missing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reason: Option<Unknown>,
    /// What was logged last, and when.
    logged: Option<(Unknown, Instant)>,
    /// Its end is still to be logged.
    open: bool,
}

impl Room {
    /// Why nothing can be written, by the last result.
    pub(crate) fn known(&self) -> Result<(), Unknown> {
        if !self.missing.load(Ordering::Acquire) {
            return Ok(());
        }
        self.state.lock().reason.map_or(Ok(()), Err)
    }

    /// Records a failed write. Returns true for the first failure: from then on trial writes are needed.
    pub(crate) fn failed(&self, reason: Unknown, error: &dyn std::fmt::Display) -> bool {
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
    pub(crate) fn found(&self) {
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
