//! Logs to standard error, one line per event, as text or JSON.
//!
//! `RUST_LOG` is honoured (`RUST_LOG=postern_gateway=debug`): levels and targets only, since there are no spans to name. Without
//! it, a daemon's own crates log from "info" and its dependencies from "warn"; `postern up`, which is interactive, logs only from
//! "warn".
//!
//! `Limit` bounds how often one place in the code logs the same warning or error.
//!
//! The DNS resolver is silent unless `RUST_LOG` names it: its messages contain the names that clients look up, some
//! even at "warn" (an answer to another query than the one sent).

use crate::own::{self, LogLevel};
use metrics::counter;
use parking_lot::{Condvar, Mutex};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::format::{Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
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

/// Prefixes of crates that log what is private: the DNS resolver names of targets, the client of PostgreSQL accounts and keys.
const PRIVATE: [&str; 2] = ["hickory", "tokio_postgres"];

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
    let silence: String =
        PRIVATE.iter().filter(|name| !text.contains(**name)).map(|name| format!(",{name}=off")).collect();
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

/// Lines that one place may write in a burst.
const BURST: u32 = 5;
/// Interval in which one more line may be written after a burst, and in which omitted lines are summarized.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of characters of a message in the summary.
const SHOWN: usize = 200;

/// Limits repeated warnings and errors, which must not fill a disk or use up the CPU: the budgets of all places that have logged one. The program's code bounds their number.
/// No lock is taken for lines of other levels, or for those that the filter rejects.
#[derive(Clone, Default)]
pub(super) struct Limit(Arc<Shared>);

#[derive(Default)]
struct Shared {
    places: Mutex<HashMap<Identifier, Budget>>,
    left_out: Condvar,
}

#[derive(Debug)]
struct Budget {
    lines: u32,
    refilled: Instant,
    left_out: u64,
    /// The first line omitted since the last summary.
    example: String,
    level: Level,
}

impl Budget {
    fn full(now: Instant, level: Level) -> Self {
        Self { lines: BURST, refilled: now, left_out: 0, example: String::new(), level }
    }

    /// Takes a line from the budget. Returns `true` if there was one.
    fn take(&mut self, now: Instant) -> bool {
        let intervals = now.saturating_duration_since(self.refilled).as_secs() / INTERVAL.as_secs();
        let lines = u32::try_from(intervals).unwrap_or(BURST);
        self.lines = self.lines.saturating_add(lines).min(BURST);
        self.refilled += Duration::from_secs(intervals * INTERVAL.as_secs()); // the rest counts next time
        let taken = self.lines > 0;
        self.lines = self.lines.saturating_sub(1);
        taken
    }
}

impl Limit {
    fn admits(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        let level = match *metadata.level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            _ => return true,
        };
        if metadata.target() == TARGET {
            return true;
        }
        let place = |of: &mut dyn FnMut(&mut Budget) -> bool| {
            let mut places = self.0.places.lock();
            of(places.entry(metadata.callsite()).or_insert_with(|| Budget::full(now, *metadata.level())))
        };
        let mut is_first = false;
        let mut take = |budget: &mut Budget| {
            is_first = budget.left_out == 0;
            budget.take(now)
        };
        if place(&mut take) {
            return true;
        }
        // Without the lock: a field's Debug may log.
        let mut example = String::new();
        if is_first {
            event.record(&mut Message(&mut example));
        }
        place(&mut |budget| {
            if budget.left_out == 0 {
                budget.example = std::mem::take(&mut example);
                self.0.left_out.notify_one();
            }
            budget.left_out += 1;
            false
        });
        counter!(own::LOG_LINES_LEFT_OUT, LogLevel::LABEL => level.as_str()).increment(1);
        false
    }

    /// Logs a summary of the lines omitted since the last call, one line for each place.
    pub(super) fn log_omitted(&self) {
        let mut summaries = Vec::new();
        for budget in self.0.places.lock().values_mut().filter(|budget| budget.left_out > 0) {
            summaries.push((
                budget.level,
                std::mem::take(&mut budget.left_out),
                std::mem::take(&mut budget.example),
            ));
        }
        for (level, number, example) in summaries {
            if level == Level::ERROR {
                tracing::error!(target: TARGET, left_out = number, "more lines like this one were left out: {example}");
            } else {
                tracing::warn!(target: TARGET, left_out = number, "more lines like this one were left out: {example}");
            }
        }
    }

    /// Starts the thread that logs a summary one interval after the first omitted line, and sleeps while there is none.
    pub(super) fn start(&self) -> std::io::Result<()> {
        let limit = self.clone();
        let summarize = move || {
            loop {
                let mut places = limit.0.places.lock();
                while places.values().all(|budget| budget.left_out == 0) {
                    limit.0.left_out.wait(&mut places);
                }
                drop(places);
                std::thread::sleep(INTERVAL);
                limit.log_omitted();
            }
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(summarize).map(drop)
    }
}

/// The target of summary lines. They are not limited: there is at most one for each place in an interval.
const TARGET: &str = "postern::log";

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admits(event, Instant::now())
    }
}

/// A visitor that collects an event's message and fields, cut to `SHOWN` characters.
struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let start = if field.name() == "message" {
            let others = std::mem::take(self.0);
            let _ = write!(self.0, "{value:?}{others}"); // writing to a String cannot fail
            self.0.len()
        } else {
            let _ = write!(self.0, " {}={value:?}", field.name());
            self.0.len()
        };
        if start > SHOWN
            && let Some((end, _)) = self.0.char_indices().nth(SHOWN)
        {
            self.0.truncate(end);
            self.0.push('…');
        }
    }
}

#[cfg(test)]
mod tests;
