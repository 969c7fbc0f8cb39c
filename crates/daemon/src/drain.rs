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
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_what_is_open() {
        let shutdown = Shutdown::new();
        let tunnel = shutdown.tracker().spawn(tokio::time::sleep(Duration::from_secs(5)));
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.wait(LONG).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "no drain was requested yet");
        shutdown.drain();
        assert_eq!(waiting.await.unwrap(), Drained::Finished);
        assert!(tunnel.is_finished());
        shutdown.stopped().await; // the admin listener, which serves during the drain, ends on this
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_cuts_off_and_tells_who_is_left() {
        let shutdown = Shutdown::new();
        let tunnel = {
            let stop = shutdown.clone();
            shutdown.tracker().spawn(async move { stop.until_stopped(std::future::pending::<()>()).await })
        };
        shutdown.drain();
        let begun = tokio::time::Instant::now();
        assert_eq!(shutdown.wait(Duration::from_secs(30)).await, Drained::CutOff(1));
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        assert_eq!(tunnel.await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_was_set_overrides_the_callers() {
        let shutdown = Shutdown::new();
        let _open = shutdown.tracker().token();
        shutdown.set_deadline(Duration::from_secs(7));
        shutdown.drain();
        let begun = tokio::time::Instant::now();
        assert_eq!(shutdown.wait(LONG).await, Drained::CutOff(1));
        assert_eq!(begun.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_does_not_wait_for_the_deadline() {
        let shutdown = Shutdown::new();
        let _open = shutdown.tracker().token();
        shutdown.stop();
        assert!(shutdown.is_draining());
        assert_eq!(shutdown.wait(LONG).await, Drained::CutOff(1));
    }

    /// Its tunnels may be gone before the wait sees the signal: workers have threads of their own.
    #[tokio::test]
    async fn a_second_signal_reports_what_was_open_when_it_came() {
        let (shutdown, mut reported) = (Shutdown::new(), Vec::new());
        let (tunnel, tracker) = (shutdown.tracker().token(), shutdown.tracker().clone());
        shutdown.count_tunnels(move || tracker.len());
        shutdown.drain();
        shutdown.stop();
        drop(tunnel);
        let report = |level, text: &str| reported.push((level, text.to_owned()));
        assert_eq!(shutdown.wait_reporting(LONG, report).await, Drained::CutOff(1));
        let said = "stopped: 1 open tunnel was cut off by the second signal".to_owned();
        assert_eq!(reported, [(Level::WARN, said)]);
    }

    #[test]
    fn tasks_of_other_runtimes_are_waited_for_too() {
        let shutdown = Shutdown::new();
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (spawned, ready) = std::sync::mpsc::channel();
        let worker = std::thread::spawn({
            let shutdown = shutdown.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let task = shutdown.tracker().spawn(released);
                    spawned.send(()).unwrap();
                    task.await.unwrap().unwrap();
                });
            }
        });
        ready.recv().unwrap();
        shutdown.drain();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ended = runtime.block_on(async {
            let mut waiting = Box::pin(shutdown.wait(LONG));
            let early = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
            assert!(early.is_err(), "the task of the other runtime is still open");
            release.send(()).unwrap();
            waiting.await
        });
        assert_eq!(ended, Drained::Finished);
        worker.join().unwrap();
    }

    /// Returns the reports of a drain of `deadline` seconds with a tunnel that ends after `open` seconds, each with its second.
    async fn reported(deadline: u64, open: u64) -> Vec<(u64, tracing::Level, String)> {
        let shutdown = Shutdown::new();
        let tunnel = tokio::time::sleep(Duration::from_secs(open));
        let tunnel = shutdown.tracker().spawn(tunnel);
        shutdown.count_tunnels(|| 0);
        shutdown.count_tunnels(move || usize::from(!tunnel.is_finished()));
        shutdown.drain();
        let (begun, mut reported) = (tokio::time::Instant::now(), Vec::new());
        let report = |level, text: &str| reported.push((begun.elapsed().as_secs(), level, text.to_owned()));
        shutdown.wait_reporting(Duration::from_secs(deadline), report).await;
        reported
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_logs_at_once_what_it_waits_for_and_repeats_it() {
        let all = reported(10, 5).await;
        let texts: Vec<_> = all.iter().map(|(at, level, text)| (*at, *level, text.as_str())).collect();
        let info = tracing::Level::INFO;
        let begin = "stopping: waiting for 1 open tunnel to end, for 10 s at most; a second Ctrl-C or SIGTERM \
            stops at once";
        let end = "stopped: everything that was open has ended by itself";
        let still = "still waiting for 1 open tunnel, for 7 s at most";
        assert_eq!(texts, [(0, info, begin), (3, info, still), (5, info, end)]);

        let last = reported(4, 5).await.pop().unwrap();
        assert_eq!(
            last,
            (4, tracing::Level::WARN, "stopped: 1 open tunnel was cut off after 4 s".to_owned())
        );
        assert_eq!(reported(10, 0).await, [], "there was nothing to wait for");
    }

    #[tokio::test]
    async fn each_listener_hears_of_a_reload_once() {
        let shutdown = Shutdown::new();
        let (mut first, mut second) = (shutdown.reloads(), shutdown.reloads());
        shutdown.reload();
        shutdown.reload();
        first.next().await;
        second.next().await;
        let again = tokio::time::timeout(Duration::from_millis(50), first.next()).await;
        assert!(again.is_err(), "two requests before the first was handled are one");
    }
}
