//! How an exchange with a memcached fails, and what that leaves open.

use crate::Unknown;
use std::io;

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No byte of the command left this process: it may be sent elsewhere.
    NotSent(Unknown),
    /// The command may have been carried out, or may yet be: it must not be repeated.
    Sent(Unknown),
}

impl Failure {
    pub(crate) fn unknown(self) -> Unknown {
        match self {
            Self::NotSent(unknown) | Self::Sent(unknown) => unknown,
        }
    }
}

/// What an error of the connection means to a caller.
pub(crate) fn broken(error: &io::Error) -> Unknown {
    match error.kind() {
        io::ErrorKind::TimedOut => Unknown::TimedOut,
        io::ErrorKind::InvalidData => Unknown::Garbled,
        kind => Unknown::Unavailable(kind),
    }
}
