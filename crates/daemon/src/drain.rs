//! Graceful shutdown: drain first, then stop, within a deadline.
//!
//! A daemon passes through three states, in this order only: *running*, *draining* (accepts nothing new, finishes what is open),
//! *stopped* (ends what is still open). SIGTERM or SIGINT starts the drain, a second one stops immediately, SIGHUP requests a
//! reload; see [`crate::signals`] for other systems.
//!
//! hyper's own graceful shutdown does not track a connection after its upgrade to a tunnel, so all work that must finish is
//! spawned through [`Shutdown::tracker`].

use crate::signals::{ReloadSignals, StopSignal, StopSignals};
use parking_lot::Mutex;
use postern_config::ConfigDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Level;

/// Time in which a connection without a request may still bring one when a drain begins: the request may be in transit, or in
/// the kernel's queue.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// Shutdown on SIGTERM. `SECONDS` is the default of the deadline.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainConfig<const SECONDS: u64> {
    /// Time that open tunnels and requests may continue.
    #[serde(default = "deadline::<SECONDS>")]
    pub deadline: ConfigDuration,
}

impl<const SECONDS: u64> Default for DrainConfig<SECONDS> {
    fn default() -> Self {
        Self { deadline: deadline::<SECONDS>() }
    }
}

fn deadline<const SECONDS: u64>() -> ConfigDuration {
    ConfigDuration::secs(SECONDS)
}

/// The shutdown state of a process. Clones share it, across threads and runtimes.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<State>);

#[derive(Debug, Default)]
struct State {
    draining: CancellationToken,
    stopped: CancellationToken,
    tracker: TaskTracker,
    reloads: watch::Sender<u64>,
    tunnels: Mutex<Vec<CountTunnels>>,
    /// Tracked tasks and tunnels that were open at the stop.
    cut_off: Mutex<Option<(usize, usize)>>,
    /// Deadline from a reloaded configuration; overrides the argument of [`Shutdown::wait`].
    deadline: Mutex<Option<Duration>>,
}

struct CountTunnels(Box<dyn Fn() -> usize + Send + Sync>);

impl fmt::Debug for CountTunnels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountTunnels")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All tracked tasks ended before the deadline.
    Finished,
    /// The deadline passed, or a second signal arrived, while this many tracked tasks were open. They were cancelled.
    CutOff(usize),
}

impl Shutdown {
    pub fn new() -> Self {
        Self::default()
    }

    /// Drains on SIGTERM and SIGINT, stops immediately on the second of them, and reports SIGHUP to [`Shutdown::reloads`]. Call
    /// it once, inside the runtime that lives longest.
    pub fn on_signals(&self) -> io::Result<()> {
        let (mut stops, mut reloads) = (StopSignals::new()?, ReloadSignals::new()?);
        let shutdown = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    signal = stops.next() => shutdown.stop_signal(signal),
                    () = reloads.next() => shutdown.reload(),
                    () = shutdown.stopped() => return,
                }
            }
        });
        Ok(())
    }

    fn stop_signal(&self, signal: StopSignal) {
        if self.is_draining() {
            tracing::info!("{signal} again: stopping at once");
            self.stop();
        } else {
            tracing::info!("{signal}: draining; send it again to stop at once");
            self.drain();
        }
    }

    /// Starts the drain. Further calls change nothing.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Stops immediately: completes [`Shutdown::stopped`] and [`Shutdown::draining`].
    pub fn stop(&self) {
        // First: what is open ends by the stop.
        self.0.cut_off.lock().get_or_insert_with(|| (self.0.tracker.len(), self.open_tunnels()));
        self.0.draining.cancel();
        self.0.stopped.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Completes when the drain begins; callers then stop accepting. Cancel safe.
    pub async fn draining(&self) {
        self.0.draining.cancelled().await;
    }

    /// Completes when a drain has begun, and `begun`, a connection's first request, has come or is not awaited any longer.
    pub async fn draining_after(&self, begun: impl Future<Output = ()>) {
        self.draining().await;
        let _ = timeout(FIRST_REQUEST, begun).await;
    }

    /// Runs a step before the first request of a connection. `None` if it was cut off, by the stop or because a drain awaits the
    /// request no longer. The step is boxed.
    pub fn before_request<F: Future>(&self, step: F) -> impl Future<Output = Option<F::Output>> {
        let mut step = Box::pin(step);
        async move {
            tokio::select! {
                output = &mut step => Some(output),
                () = self.stopped() => None,
                () = self.draining_after(pending()) => None,
            }
        }
    }

    /// Completes when open work must end: the deadline passed or a second signal arrived. Cancel safe.
    pub async fn stopped(&self) {
        self.0.stopped.cancelled().await;
    }

    /// Returns the tracker that spawns work which a drain waits for: accept loops, connections, tunnels. Accept loops are
    /// included because a drain that begins between an accept and the spawn of its connection would otherwise miss the
    /// connection.
    pub fn tracker(&self) -> &TaskTracker {
        &self.0.tracker
    }

    /// Requests a reload from every [`Reloads`], as SIGHUP does.
    pub fn reload(&self) {
        self.0.reloads.send_modify(|count| *count += 1);
    }

    /// Subscribes to reload requests from now on. Requests that arrive while one is handled count as one.
    pub fn reloads(&self) -> Reloads {
        Reloads { seen: self.0.reloads.subscribe(), _alive: self.clone() }
    }

    /// Waits for the drain to begin and then for all tracked work to end, at most `deadline`. Work that is open after that, or
    /// after [`Shutdown::stop`], is cancelled and not awaited: the caller drops the runtime. On return the state is *stopped*.
    pub async fn wait(&self, deadline: Duration) -> Drained {
        self.wait_reporting(deadline, |_, _| {}).await
    }

    /// Sets the maximum duration of a drain that has not begun; it overrides the argument of [`Shutdown::wait`].
    pub fn set_deadline(&self, deadline: Duration) {
        *self.0.deadline.lock() = Some(deadline);
    }

    /// Waits as [`Shutdown::wait`] does, and calls `report` with what is awaited and the time left: shortly after the start, then
    /// every few seconds, and at the end. Only work that was cut off is reported as a warning.
    pub async fn wait_reporting(
        &self,
        deadline: Duration,
        report: impl FnMut(tracing::Level, &str),
    ) -> Drained {
        self.draining().await;
        self.0.tracker.close();
        let deadline = self.0.deadline.lock().unwrap_or(deadline);
        let mut progress = Progress::begin(deadline, report);
        let mut finishing = pin!(self.0.tracker.wait());
        let mut stopping = pin!(self.stopped());
        let by_signal = || "by the second signal".to_owned();
        let cut = loop {
            tokio::select! {
                biased;
                // Tunnels that the second signal has cut off may have ended since.
                () = &mut finishing => break (self.cut_off().1 > 0).then(by_signal),
                () = &mut stopping => break Some(by_signal()),
                () = progress.over() => break Some(format!("after {}", seconds(deadline))),
                () = progress.due() => progress.waiting(self.open_tunnels()),
            }
        };
        self.stop();
        let (left, tunnels) = self.cut_off();
        progress.ended(cut.as_deref(), tunnels);
        if cut.is_none() { Drained::Finished } else { Drained::CutOff(left) }
    }

    fn cut_off(&self) -> (usize, usize) {
        self.0.cut_off.lock().unwrap_or_default()
    }

    /// Adds a daemon's count of open tunnels, for progress reports.
    pub fn count_tunnels(&self, count: impl Fn() -> usize + Send + Sync + 'static) {
        self.0.tunnels.lock().push(CountTunnels(Box::new(count)));
    }

    /// Returns the largest count: if agent and gateway are one process, most tunnels are open in both.
    fn open_tunnels(&self) -> usize {
        self.0.tunnels.lock().iter().map(|count| count.0()).max().unwrap_or(0)
    }

    /// Runs `work` until it ends or the state is *stopped*; `None` if it was cut off.
    ///
    /// The work is boxed: an async function stores its argument in addition to the future that it awaits, so each such layer
    /// around a connection would double the connection's memory.
    pub fn until_stopped<F: Future>(&self, work: F) -> impl Future<Output = Option<F::Output>> {
        self.0.stopped.run_until_cancelled(Box::pin(work))
    }
}

/// Receiver of reload requests, from SIGHUP or [`Shutdown::reload`].
#[derive(Debug)]
pub struct Reloads {
    seen: watch::Receiver<u64>,
    _alive: Shutdown, // keeps the sender alive, so that `changed` cannot fail
}

impl Reloads {
    /// Completes when a reload was requested since the last call. Cancel safe.
    pub async fn next(&mut self) {
        if self.seen.changed().await.is_err() {
            pending().await
        }
    }
}

/// Minimum duration of a drain that is reported.
const GRACE: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(3);

struct Progress<T> {
    over: Instant,
    due: Instant,
    has_reported: bool,
    report: T,
}

impl<T: FnMut(Level, &str)> Progress<T> {
    fn begin(deadline: Duration, report: T) -> Self {
        let now = Instant::now();
        Self { over: now + deadline, due: now + GRACE, has_reported: false, report }
    }

    /// Completes when the deadline has passed. Cancel safe.
    fn over(&self) -> impl Future<Output = ()> + use<T> {
        sleep_until(self.over)
    }

    /// Completes when a report is due. Cancel safe.
    fn due(&self) -> impl Future<Output = ()> + use<T> {
        sleep_until(self.due)
    }

    fn waiting(&mut self, tunnels: usize) {
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
    fn ended(mut self, cut: Option<&str>, tunnels: usize) {
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
fn seconds(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..1000 => format!("{millis} ms"),
        millis => format!("{} s", millis.div_ceil(1000)),
    }
}

#[cfg(test)]
mod tests;
