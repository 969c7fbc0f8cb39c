//! `/status.json`: what a daemon says of itself to its own status command, as it is at that moment.
//!
//! The live page is for eyes and a second old. A report has what a command needs in order to say in words what a daemon does
//! next. No destination, client or token belongs in it.

use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// A daemon's report. Called for each request, so it must not wait for anything.
type Report = Box<dyn Fn() -> Value + Send>;

/// The reports of a process. Clones share them.
#[derive(Clone, Default)]
pub struct Reports(Arc<Mutex<Vec<(&'static str, Report)>>>);

impl Reports {
    /// Adds a report under a name.
    pub fn add(&self, name: &'static str, report: impl Fn() -> Value + Send + 'static) {
        self.0.lock().push((name, Box::new(report)));
    }

    /// All of them by name.
    #[must_use]
    pub fn collect(&self) -> Map<String, Value> {
        self.0.lock().iter().map(|(name, report)| ((*name).to_owned(), report())).collect()
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reports({})", self.0.lock().len())
    }
}
