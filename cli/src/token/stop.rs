//! Ctrl-C and SIGTERM while tokens are minted: the first lets what is under way be written, the second does not wait.

use crate::failure::Failure;
use std::fmt::{self, Display};
use std::sync::{Arc, OnceLock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// The signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Interrupt,
    Terminate,
}

impl Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// Whether to stop.
pub(super) struct Stop {
    first: Arc<OnceLock<Asked>>,
    second: Arc<Notify>,
}

impl Stop {
    /// Begins to listen. Before that, a signal ends the process, and nothing is lost by it.
    pub(super) fn on_signals() -> Result<Self, Failure> {
        let refused = |error| Failure::runtime(format_args!("cannot handle signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(refused)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(refused)?;
        let stop = Self { first: Arc::default(), second: Arc::default() };
        let (first, second) = (stop.first.clone(), stop.second.clone());
        tokio::spawn(async move {
            loop {
                let asked = tokio::select! {
                    Some(()) = interrupt.recv() => Asked::Interrupt,
                    Some(()) = terminate.recv() => Asked::Terminate,
                    else => return,
                };
                if first.set(asked).is_err() {
                    return second.notify_one();
                }
                eprintln!(
                    "{asked}: writing the tokens that are under way; a second signal discards them and stops immediately"
                );
            }
        });
        Ok(stop)
    }

    pub(super) fn is_asked(&self) -> bool {
        self.first.get().is_some()
    }

    /// The first signal, if one came.
    pub(super) fn first(&self) -> Option<Asked> {
        self.first.get().copied()
    }

    /// Completes with the second signal, also when it came before this was called.
    pub(super) async fn at_once(&self) {
        self.second.notified().await;
    }
}
