//! What is recorded of a request after it was answered.

use super::access::{Line, Went};
use crate::observe::spans;
use postern_proxy::relay::Relayed;
use postern_telemetry::traces::Trace;
use std::time::Instant;

/// The rest of a request's trace, and its line of the access log. If dropped early, the request is logged without
/// tunnel fields.
///
/// Boxed, for every open tunnel has an account, and few have something in it.
pub(crate) struct Account {
    pub(super) trace: Option<Box<Trace>>,
    pub(super) line: Option<Box<Line>>,
}

impl Account {
    /// The tunnel has ended.
    pub(crate) fn tunnel_ended(mut self, began: Instant, relayed: &Relayed) {
        let ended = Instant::now();
        if let Some(mut trace) = self.trace.take() {
            // Traces have no byte counts: sizes and times of one tunnel together can reveal its content.
            let root = trace.root();
            trace.span(spans::TUNNEL, root, (began, ended), spans::Kind::Internal, Vec::new());
            trace.send();
        }
        if let Some(line) = self.line.take() {
            let (up, down) = (relayed.up, relayed.down);
            line.write(Some(Went { ended: relayed.ended, lasted: ended - began, up, down }));
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.write(None);
        }
    }
}
