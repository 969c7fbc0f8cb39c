//! Failures of commands.

use postern_config::ConfigError;
use postern_daemon::exit;
use std::error::Error;
use std::fmt::Display;
use std::io;

/// A sentence for people, and an exit code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) sentence: String,
    /// `true` if this user lacks a permission that another user may have.
    #[cfg_attr(not(feature = "servers"), allow(dead_code, reason = "only `postern doctor` reads it"))]
    pub(crate) is_forbidden: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, sentence: impl Display) -> Self {
        Self { code, sentence: sentence.to_string(), is_forbidden: false }
    }

    /// Creates a failure from an error, and inspects the error's causes for a missing permission.
    fn of(code: u8, error: &(dyn Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| (*error).source());
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let is_forbidden = causes.filter_map(|cause| cause.downcast_ref()).any(is_denied);
        Self { is_forbidden, ..Self::new(code, error) }
    }

    /// Creates the failure for a configuration that this user may not read.
    #[cfg(feature = "servers")]
    pub(crate) fn forbidden(error: &io::Error) -> Self {
        Self::of(exit::CONFIG, error)
    }

    /// Creates a failure that the machine's state causes, not the configuration.
    pub(crate) fn runtime(sentence: impl Display) -> Self {
        Self::new(exit::RUNTIME, sentence)
    }

    pub(crate) fn usage(sentence: impl Display) -> Self {
        Self::new(exit::USAGE, sentence)
    }

    /// Creates a failure that requires an edit of a configuration.
    pub(crate) fn configuration(sentence: impl Display) -> Self {
        Self::new(exit::CONFIG, sentence)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::configuration(error)
    }
}

#[cfg(feature = "servers")]
impl From<postern_gateway::StartError> for Failure {
    fn from(error: postern_gateway::StartError) -> Self {
        Self::of(error.exit_code(), &error)
    }
}

#[cfg(feature = "servers")]
impl From<postern_issuer::StartError> for Failure {
    fn from(error: postern_issuer::StartError) -> Self {
        Self::of(error.exit_code(), &error)
    }
}

impl From<postern_client::join::JoinWriteError> for Failure {
    fn from(error: postern_client::join::JoinWriteError) -> Self {
        Self::new(error.exit_code, error)
    }
}

impl From<postern_client::StartError> for Failure {
    fn from(error: postern_client::StartError) -> Self {
        Self::of(error.exit_code(), &error)
    }
}

#[cfg(all(test, feature = "servers"))]
mod tests {
    use super::*;
    use postern_daemon::tls::TlsError;

    #[test]
    fn what_this_user_may_not_read_is_known_by_its_cause() {
        let unreadable =
            |kind: io::ErrorKind| TlsError::Unreadable { path: "key.pem".into(), source: kind.into() };
        let of = |kind| Failure::from(postern_issuer::StartError::from(unreadable(kind))).is_forbidden;
        assert!(of(io::ErrorKind::PermissionDenied));
        assert!(!of(io::ErrorKind::NotFound));
    }
}
