//! Requests of people and service managers to a process: stop, or read the configuration again.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{ReloadSignals, StopSignals};
#[cfg(windows)]
pub use windows::{ReloadSignals, StopSignals};

use std::fmt::{self, Display};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// From a person: Ctrl-C (SIGINT); on Windows also Ctrl-Break.
    Interrupt,
    /// From the system: SIGTERM; on Windows the end of the window, the session or the system.
    Terminate,
}

impl Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate if cfg!(unix) => "SIGTERM",
            Self::Terminate => "the end of the session",
        })
    }
}
