//! Logs to standard error, one line per event, as text or JSON.
//!
//! `RUST_LOG` is honoured (`RUST_LOG=postern_gateway=debug`): levels and targets only, since there are no spans to name. Without
//! it, a daemon's own crates log from "info" and its dependencies from "warn"; `postern up`, which is interactive, logs only from
//! "warn".
//!
//! `limit` bounds how often one place in the code logs the same warning or error.
//!
//! The DNS resolver is silent unless `RUST_LOG` names it: its messages contain the names that clients look up, some
//! even at "warn" (an answer to another query than the one sent).

mod limit;

use limit::Limit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

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

/// Logs, to standard error.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Format of lines.
    pub format: LogFormat,
}

/// The default filter. "postern" is a prefix of every crate of this project.
const DEFAULT_FILTER: &str = "warn,postern=info";
/// The default filter for `postern up`.
const QUIET_FILTER: &str = "warn";

/// A prefix of all crates of the DNS resolver.
const RESOLVER: &str = "hickory";
const RESOLVER_OFF: &str = ",hickory=off";

/// The target of access log lines. The configuration enables them, so a filter need not name them.
const ACCESS: &str = "postern::access";
const ACCESS_ON: &str = ",postern::access=info";

/// Starts logging. Only the first call in a process has an effect.
pub fn init(format: LogFormat) -> Result<(), LogError> {
    start(format, DEFAULT_FILTER)
}

/// Starts logging as [`init`] does, but from "warn" only if `RUST_LOG` is not set.
pub fn init_quiet(format: LogFormat) -> Result<(), LogError> {
    start(format, QUIET_FILTER)
}

fn start(format: LogFormat, default: &str) -> Result<(), LogError> {
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref(), default)?;
    set_format(format);
    // A line that cannot be written is lost: reporting the failure, to standard error again, would panic, and clients can cause
    // lines.
    let subscriber = fmt()
        .log_internal_errors(false)
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(Switched {
            text: Format::default(),
            json: Format::default().json().flatten_event(true),
        });
    let limit = LIMIT.get_or_init(Limit::default);
    let installed = subscriber.finish().with(filter).with(limit.clone()).try_init();
    // An `Err` means that a logger is already installed: tests and `up` call this more than once.
    if installed.is_ok() {
        // If the thread cannot start, omitted lines are summarized only at the end.
        let _ = limit.start();
    }
    Ok(())
}

static IS_JSON: AtomicBool = AtomicBool::new(false);

pub fn set_format(format: LogFormat) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Both formats, between which a reload may switch.
struct Switched {
    text: Format,
    json: Format<Json>,
}

impl<S, N> FormatEvent<S, N> for Switched
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        if IS_JSON.load(Ordering::Relaxed) {
            self.json.format_event(context, writer, event)
        } else {
            self.text.format_event(context, writer, event)
        }
    }
}

/// The limit of the installed logger.
static LIMIT: OnceLock<Limit> = OnceLock::new();

/// Logs a summary of omitted lines that are not reported yet, at the end of a process.
pub fn finish() {
    if let Some(limit) = LIMIT.get() {
        limit.log_omitted();
    }
}

fn filter(rust_log: Option<&str>, default: &str) -> Result<Targets, LogError> {
    let text = rust_log.filter(|text| !text.is_empty()).unwrap_or(default);
    let silence = if text.contains(RESOLVER) { "" } else { RESOLVER_OFF };
    let access = if text.contains(ACCESS) { "" } else { ACCESS_ON };
    let all = format!("{text}{silence}{access}");
    let directives: Vec<&str> =
        all.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    directives.join(",").parse().map_err(|source: tracing_subscriber::filter::ParseError| LogError {
        value: text.to_owned(),
        reason: source.to_string(),
    })
}

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
        assert_eq!(
            filter(None, DEFAULT_FILTER).unwrap().to_string(),
            "postern::access=info,postern=info,hickory=off,warn"
        );
        assert_eq!(
            filter(Some(""), DEFAULT_FILTER).unwrap().to_string(),
            "postern::access=info,postern=info,hickory=off,warn"
        );
        assert_eq!(
            filter(Some("debug"), QUIET_FILTER).unwrap().to_string(),
            "postern::access=info,hickory=off,debug"
        );
    }

    /// Returns the log of a warning of the resolver and one of another crate.
    fn logged(rust_log: Option<&str>) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writer = std::sync::Mutex::new(file.reopen().unwrap());
        let filter = filter(rust_log, DEFAULT_FILTER).unwrap();
        let subscriber = fmt().with_max_level(LevelFilter::TRACE).with_writer(writer).finish().with(filter);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "hickory_net::udp", "an answer to another question: secret.example");
            tracing::warn!(target: "hyper", "something else");
        });
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn the_resolver_is_silent_unless_it_is_named() {
        for rust_log in [None, Some("trace"), Some("debug,postern_gateway=trace,")] {
            let text = logged(rust_log);
            assert!(
                text.contains("something else") && !text.contains("secret.example"),
                "{rust_log:?}: {text}"
            );
        }
        assert!(logged(Some("hickory_net=warn")).contains("secret.example"));
    }

    #[test]
    fn a_bad_filter_is_said_in_a_sentence() {
        let error = filter(Some("postern=loud"), QUIET_FILTER).unwrap_err().to_string();
        assert!(
            error.starts_with("the environment variable RUST_LOG = \"postern=loud\" is not a log filter: ")
        );
    }
}
