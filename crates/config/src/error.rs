//! Errors of configurations, as sentences for operators.

/// A configuration that cannot be used, as sentences. Daemons exit with 64 on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .sentences.join("\n"))]
pub struct ConfigError {
    sentences: Vec<String>,
}

impl ConfigError {
    /// One thing wrong at `place` (a file, or a file and a key), for the checks that a daemon makes of its own:
    /// "place: sentence".
    #[must_use]
    pub fn new(place: &str, sentence: impl std::fmt::Display) -> Self {
        Self { sentences: vec![format!("{place}: {sentence}")] }
    }

    pub(super) fn from_sentences(sentences: Vec<String>) -> Result<(), Self> {
        if sentences.is_empty() { Ok(()) } else { Err(Self { sentences }) }
    }
}
