//! Limits repeated warnings and errors, which must not fill a disk or use up the CPU: each place in the code that logs
//! one has a budget of lines. Omitted lines are counted in a metric and in a summary line.

use crate::own::{self, LogLevel};
use metrics::counter;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines that one place may write in a burst.
const BURST: u32 = 5;
/// Interval in which one more line may be written after a burst, and in which omitted lines are summarized.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of characters of a message in the summary.
const SHOWN: usize = 200;

/// The budgets of all places that have logged a warning or an error. The program's code bounds their number.
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
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
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
