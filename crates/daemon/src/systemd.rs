//! Reports to systemd (sd_notify(3)): readiness, a status line, watchdog keep-alives, the drain. Does nothing if systemd did not
//! start the process.

use crate::drain::Shutdown;
use crate::http::one_line;
use crate::readiness::Readiness;
use parking_lot::Mutex;
use sd_notify::NotifyState;
use std::env;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, interval, sleep};

/// Maximum interval between status checks, and between heartbeats.
const TICK: Duration = Duration::from_secs(1);
/// Extension of the start timeout that each report requests before the daemon accepts clients, in microseconds.
const MORE_TIME: u32 = 30_000_000;

/// Heartbeats of a process's runtimes. One stuck runtime stops the keep-alives to the watchdog, however well the others run.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    /// Silence after which systemd restarts the process (`WatchdogSec`); `None` if the watchdog is off.
    limit: Option<Duration>,
    beats: Arc<Mutex<Vec<Weak<Mutex<Instant>>>>>,
}

impl Pulse {
    /// Reads the watchdog timeout of this process from its environment.
    pub fn of_process() -> Self {
        Self::within(sd_notify::watchdog_enabled())
    }

    fn within(limit: Option<Duration>) -> Self {
        Self { limit, beats: Arc::default() }
    }

    /// Records the progress of the current runtime for as long as it lives. Returns immediately if the watchdog is off.
    pub async fn beat(self) {
        let Some(limit) = self.limit else { return };
        let beat = Arc::new(Mutex::new(Instant::now()));
        self.beats.lock().push(Arc::downgrade(&beat));
        loop {
            sleep(TICK.min(limit / 4)).await;
            *beat.lock() = Instant::now();
        }
    }

    /// `true` if each runtime that beats has done so within half the limit; `false` if the watchdog is off.
    fn is_regular(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        let mut beats = self.beats.lock();
        beats.retain(|beat| beat.strong_count() > 0);
        beats.iter().filter_map(Weak::upgrade).all(|beat| beat.lock().elapsed() < limit / 2)
    }
}

/// Reports until the stop, which follows a drain immediately if no tunnel is open. `listening` completes when the daemon accepts
/// clients. Until then systemd considers the daemon starting, and each report extends the start timeout.
pub async fn report(
    listening: impl Future<Output = ()>,
    readiness: Readiness,
    pulse: Pulse,
    shutdown: Shutdown,
) {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let reporting = async {
        let (mut listening, mut takes_clients, mut said) = (pin!(listening), false, String::new());
        let (mut draining, mut drains) = (pin!(shutdown.draining()), false);
        let mut ticks = interval(pulse.limit.map_or(TICK, |limit| TICK.min(limit / 4)));
        loop {
            let mut reports = Vec::new();
            tokio::select! {
                () = &mut listening, if !takes_clients => {
                    takes_clients = true;
                    reports.push(NotifyState::Ready);
                }
                () = &mut draining, if !drains => {
                    drains = true;
                    reports.push(NotifyState::Stopping);
                }
                _ = ticks.tick() => {}
            }
            if !takes_clients {
                reports.push(NotifyState::ExtendTimeoutUsec(MORE_TIME));
            }
            if pulse.is_regular() {
                reports.push(NotifyState::Watchdog);
            }
            let state = state(&readiness, drains);
            if state != said {
                reports.push(NotifyState::Status(&state));
            }
            send(&reports);
            said = state;
        }
    };
    shutdown.until_stopped(reporting).await;
}

/// Formats the status line of `systemctl status`.
fn state(readiness: &Readiness, drains: bool) -> String {
    let listed =
        |what: &str, reasons: &[String]| format!("{what}: {}", one_line(reasons.join("; ").as_bytes()));
    match (drains, &*readiness.reasons(), &*readiness.degraded()) {
        (true, _, _) => "draining: open tunnels go on, and no new ones are taken".to_owned(),
        (false, [], []) => "ready".to_owned(),
        (false, [], degraded) => listed("ready, and degraded", degraded),
        (false, reasons, _) => listed("not ready", reasons),
    }
}

fn send(reports: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(reports) {
        tracing::debug!(%error, "systemd takes no reports");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_stuck_is_missed_and_one_that_has_ended_is_not() {
        let pulse = Pulse::within(Some(Duration::from_secs(10)));
        let beating = tokio::spawn(pulse.clone().beat());
        sleep(Duration::from_secs(60)).await;
        assert!(pulse.is_regular());
        let stuck = Arc::new(Mutex::new(Instant::now()));
        pulse.beats.lock().push(Arc::downgrade(&stuck));
        sleep(Duration::from_millis(4_900)).await;
        assert!(pulse.is_regular());
        sleep(Duration::from_millis(200)).await;
        assert!(!pulse.is_regular());
        drop(stuck);
        assert!(pulse.is_regular());
        beating.abort();
        Pulse::default().beat().await; // no watchdog
        assert!(!Pulse::default().is_regular());
    }
}
