use super::live::Live;
use crate::descriptors::Descriptors;
use crate::drain::Shutdown;
use crate::readiness::Readiness;
use crate::systemd::Pulse;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::fmt;
use std::sync::Arc;

/// The shutdown, the readiness, the live page and the file descriptors that all daemons of a process share. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ProcessContext {
    pub shutdown: Shutdown,
    pub readiness: Readiness,
    pub live: Live,
    pub reports: Reports,
    pub descriptors: Descriptors,
    /// Signs of life of the process's runtimes, for systemd.
    pub pulse: Pulse,
}

/// A daemon's report. It is called for each request, so it must not block.
type Report = Box<dyn Fn() -> Value + Send>;

/// The reports of the daemons to their status commands, in `/status.json`, made at the time of the request. Clones share them.
///
/// The live page is for people and up to a second old. A report contains what a command needs to explain what a daemon does next.
/// It must not contain destinations, clients or tokens.
#[derive(Clone, Default)]
pub struct Reports(Arc<Mutex<Vec<(&'static str, Report)>>>);

impl Reports {
    pub fn add(&self, name: &'static str, report: impl Fn() -> Value + Send + 'static) {
        self.0.lock().push((name, Box::new(report)));
    }

    /// Returns all reports by name.
    pub fn collect(&self) -> Map<String, Value> {
        self.0.lock().iter().map(|(name, report)| ((*name).to_owned(), report())).collect()
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reports({})", self.0.lock().len())
    }
}
