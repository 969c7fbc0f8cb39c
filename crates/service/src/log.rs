//! Logs: one line an event on standard error, as text or JSON.
//!
//! `RUST_LOG` is honoured (`RUST_LOG=postern_gateway=debug`). Without it Postern's own crates log from "info" and
//! its dependencies from "warn".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for machines.
    Json,
}

/// "postern" is a prefix: it stands for every crate of this project.
const DEFAULT_FILTER: &str = "warn,postern=info";

/// Starts logging. Only the first call in a process has an effect.
///
/// # Errors
/// When `RUST_LOG` is set to something that is not a filter.
pub fn init(format: LogFormat) -> Result<(), LogError> {
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref())?;
    let subscriber =
        fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // An Err says that a logger is installed already: tests and `up` call this more than once.
    let _ = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
    Ok(())
}

fn filter(rust_log: Option<&str>) -> Result<EnvFilter, LogError> {
    match rust_log {
        None | Some("") => Ok(EnvFilter::new(DEFAULT_FILTER)),
        Some(text) => EnvFilter::try_new(text)
            .map_err(|source| LogError { value: text.to_owned(), reason: source.to_string() }),
    }
}

/// `RUST_LOG` is not a filter.
#[derive(Debug, thiserror::Error)]
#[error(
    "the environment variable RUST_LOG = {value:?} is not a log filter: {reason}; write a level such as \"debug\", or \"postern_gateway=debug\""
)]
pub struct LogError {
    value: String,
    reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_covers_every_crate_of_ours_and_quiets_the_rest() {
        assert_eq!(filter(None).unwrap().to_string(), "postern=info,warn");
        assert_eq!(filter(Some("")).unwrap().to_string(), "postern=info,warn");
        assert_eq!(filter(Some("debug")).unwrap().to_string(), "debug");
    }

    #[test]
    fn a_bad_filter_is_said_in_a_sentence() {
        let error = filter(Some("postern=loud")).unwrap_err().to_string();
        assert!(
            error.starts_with("the environment variable RUST_LOG = \"postern=loud\" is not a log filter: ")
        );
    }
}
