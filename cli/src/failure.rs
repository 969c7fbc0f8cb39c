//! How a command fails: a sentence for the person, a code for the script.

use postern_config::ConfigError;
use postern_daemon::exit;
use std::error::Error;
use std::fmt::Display;
use std::io;

/// A sentence and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) sentence: String,
    /// This user may not read or write something; another may.
    #[cfg_attr(not(feature = "servers"), allow(dead_code, reason = "only `postern doctor` reads it"))]
    pub(crate) is_forbidden: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, sentence: impl Display) -> Self {
        Self { code, sentence: sentence.to_string(), is_forbidden: false }
    }

    /// With what caused it.
    fn of(code: u8, error: &(dyn Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| (*error).source());
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let is_forbidden = causes.filter_map(|cause| cause.downcast_ref()).any(is_denied);
        Self { is_forbidden, ..Self::new(code, error) }
    }

    /// This user may not read a configuration.
    #[cfg(feature = "servers")]
    pub(crate) fn forbidden(error: &io::Error) -> Self {
        Self::of(exit::CONFIG, error)
    }

    /// The machine's state is in the way, not the configuration.
    pub(crate) fn runtime(sentence: impl Display) -> Self {
        Self::new(exit::RUNTIME, sentence)
    }

    /// The command line makes no sense.
    pub(crate) fn usage(sentence: impl Display) -> Self {
        Self::new(exit::USAGE, sentence)
    }

    /// Somebody has to edit something first.
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
impl From<postern_gateway::ResolverError> for Failure {
    fn from(error: postern_gateway::ResolverError) -> Self {
        Self::runtime(error)
    }
}

#[cfg(feature = "servers")]
impl From<postern_issuer::StartError> for Failure {
    fn from(error: postern_issuer::StartError) -> Self {
        Self::of(error.exit_code(), &error)
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
