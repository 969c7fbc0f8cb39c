//! How a command fails: a sentence for the person, a code for the script.

use postern_config::ConfigError;
use postern_daemon::exit;
use std::fmt::Display;

/// A sentence and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) sentence: String,
}

impl Failure {
    pub(crate) fn new(code: u8, sentence: impl Display) -> Self {
        Self { code, sentence: sentence.to_string() }
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
        Self::new(error.exit_code(), error)
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
        Self::new(error.exit_code(), error)
    }
}

impl From<postern_client::StartError> for Failure {
    fn from(error: postern_client::StartError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
