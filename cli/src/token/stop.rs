//! Ctrl-C and SIGTERM while tokens are minted: the first lets what is under way be written, the second does not wait.

use crate::failure::Failure;
use crate::stdio::note;
use postern_daemon::signals::{StopSignal, StopSignals};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// Whether to stop.
pub(super) struct Stop {
    first: Arc<OnceLock<StopSignal>>,
    second: Arc<Notify>,
}

impl Stop {
    /// Begins to listen. Before that, a signal ends the process, and nothing is lost by it.
    pub(super) fn on_signals() -> Result<Self, Failure> {
        let refused = |error| Failure::runtime(format_args!("cannot handle signals: {error}"));
        let mut signals = StopSignals::new().map_err(refused)?;
        let stop = Self { first: Arc::default(), second: Arc::default() };
        let (first, second) = (stop.first.clone(), stop.second.clone());
        tokio::spawn(async move {
            loop {
                let signal = signals.next().await;
                if first.set(signal).is_err() {
                    return second.notify_one();
                }
                note(format_args!(
                    "{signal}: writing the tokens that are under way; a second signal discards them and stops immediately"
                ));
            }
        });
        Ok(stop)
    }

    pub(super) fn is_asked(&self) -> bool {
        self.first.get().is_some()
    }

    /// The first signal, if one came.
    pub(super) fn first(&self) -> Option<StopSignal> {
        self.first.get().copied()
    }

    /// Completes with the second signal, also when it came before this was called.
    pub(super) async fn at_once(&self) {
        self.second.notified().await;
    }
}
