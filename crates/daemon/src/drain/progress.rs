//! Reports the progress of a drain.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::Level;

/// A drain that ends within this time is not reported.
const GRACE: Duration = Duration::from_millis(100);
/// The time between two reports.
const INTERVAL: Duration = Duration::from_secs(3);

/// Reports progress as lines of text.
pub(super) struct Progress<T> {
    deadline: Duration,
    over: Instant,
    due: Instant,
    has_reported: bool,
    report: T,
}

impl<T: FnMut(Level, &str)> Progress<T> {
    pub(super) fn begin(deadline: Duration, report: T) -> Self {
        let now = Instant::now();
        Self { deadline, over: now + deadline, due: now + GRACE, has_reported: false, report }
    }

    /// Completes when the deadline has passed. Cancel safe.
    pub(super) fn over(&self) -> impl Future<Output = ()> + use<T> {
        sleep_until(self.over)
    }

    /// Completes when a line is due. Cancel safe.
    pub(super) fn due(&self) -> impl Future<Output = ()> + use<T> {
        sleep_until(self.due)
    }

    pub(super) fn waiting(&mut self, tunnels: usize) {
        let now = Instant::now();
        let left = seconds(self.over.saturating_duration_since(now));
        let what = open(tunnels);
        if self.has_reported {
            (self.report)(Level::INFO, &format!("still waiting for {what}, for {left} at most"));
        } else {
            let text = format!(
                "stopping: waiting for {what} to end, for {left} at most; a second Ctrl-C or SIGTERM stops at once"
            );
            (self.report)(Level::INFO, &text);
        }
        self.has_reported = true;
        self.due = now + INTERVAL;
    }

    /// `cut` is the reason why the drain was cut short, if it was.
    pub(super) fn ended(mut self, cut: Option<Cut>, tunnels: usize) {
        let why = match cut {
            None if self.has_reported => {
                return (self.report)(Level::INFO, "stopped: everything that was open has ended by itself");
            }
            None => return,
            Some(Cut::Deadline) => format!("after {}", seconds(self.deadline)),
            Some(Cut::Signal) => "by the second signal".to_owned(),
        };
        let verb = if tunnels == 1 { "was" } else { "were" };
        (self.report)(Level::WARN, &format!("stopped: {} {verb} cut off {why}", open(tunnels)));
    }
}

/// Why a drain does not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Deadline,
    Signal,
}

fn open(tunnels: usize) -> String {
    match tunnels {
        0 => "open connections".to_owned(),
        1 => "1 open tunnel".to_owned(),
        _ => format!("{tunnels} open tunnels"),
    }
}

/// Whole seconds, rounded up, where there is one.
fn seconds(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis => format!("{} s", millis.div_ceil(1000)),
    }
}
