use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::Level;

/// Minimum duration of a drain that is reported.
const GRACE: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(3);

pub(super) struct Progress<T> {
    over: Instant,
    due: Instant,
    has_reported: bool,
    report: T,
}

impl<T: FnMut(Level, &str)> Progress<T> {
    pub(super) fn begin(deadline: Duration, report: T) -> Self {
        let now = Instant::now();
        Self { over: now + deadline, due: now + GRACE, has_reported: false, report }
    }

    /// Completes when the deadline has passed. Cancel safe.
    pub(super) fn over(&self) -> impl Future<Output = ()> + use<T> {
        sleep_until(self.over)
    }

    /// Completes when a report is due. Cancel safe.
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

    /// Reports the end, and what has cut work off; `None` if all work ended by itself.
    pub(super) fn ended(mut self, cut: Option<&str>, tunnels: usize) {
        let Some(why) = cut else {
            if self.has_reported {
                (self.report)(Level::INFO, "stopped: everything that was open has ended by itself");
            }
            return;
        };
        let verb = if tunnels == 1 { "was" } else { "were" };
        (self.report)(Level::WARN, &format!("stopped: {} {verb} cut off {why}", open(tunnels)));
    }
}

fn open(tunnels: usize) -> String {
    match tunnels {
        0 => "open connections".to_owned(),
        1 => "1 open tunnel".to_owned(),
        _ => format!("{tunnels} open tunnels"),
    }
}

/// Formats milliseconds below one second, otherwise whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis => format!("{} s", millis.div_ceil(1000)),
    }
}
