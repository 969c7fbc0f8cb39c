//! What people and service managers want of a process: that it stops, or that it reads its configuration again.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{ReloadSignals, StopSignals};
#[cfg(windows)]
pub use windows::{ReloadSignals, StopSignals};

use std::fmt::{self, Display};

/// A request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// A person's: Ctrl-C, SIGINT.
    Interrupt,
    /// The system's: SIGTERM; on Windows a window that is closed, a session or a system that ends.
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
