//! The access log: a line for each request, if the operator wants one. What happened and how long it took; who and
//! where only with `access = "full"`.

use crate::config::AccessLog;
use crate::observe::labels::Outcome;
use crate::observe::timeline::{Stage, Timeline};
use http::request;
use postern_proxy::relay::TunnelEnd;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// What is logged now: a reload may change it.
pub(super) struct Access(AtomicU8);

/// The client and its target. Empty unless the operator switched it on.
#[derive(Default)]
pub(crate) struct Who {
    client: Option<SocketAddr>,
    target: Option<String>,
}

/// A request that is still to be logged.
pub(super) struct Line {
    outcome: Outcome,
    check: Option<Duration>,
    dial: Option<Duration>,
    who: Who,
}

/// How a tunnel went.
pub(super) struct Went {
    pub(super) ended: TunnelEnd,
    pub(super) lasted: Duration,
    pub(super) up: u64,
    pub(super) down: u64,
}

impl Access {
    pub(super) fn new(log: AccessLog) -> Self {
        let access = Self(AtomicU8::default());
        access.set(log);
        access
    }

    pub(super) fn set(&self, log: AccessLog) {
        self.0.store(log as u8, Ordering::Relaxed);
    }

    fn is(&self, log: AccessLog) -> bool {
        self.0.load(Ordering::Relaxed) == log as u8
    }

    pub(super) fn names_clients(&self) -> bool {
        self.is(AccessLog::Full)
    }

    pub(super) fn who(&self, client: Option<SocketAddr>, head: &request::Parts) -> Who {
        if !self.names_clients() {
            return Who::default();
        }
        // Not the whole authority: a name and a password may stand before the host.
        let target = head.uri.authority().map(|authority| match authority.port() {
            Some(port) => format!("{}:{port}", authority.host()),
            None => authority.host().to_owned(),
        });
        Who { client, target }
    }

    pub(super) fn line(&self, outcome: Outcome, timeline: &Timeline, who: Who) -> Option<Line> {
        let line = Line { outcome, check: timeline.check(), dial: timeline.took(Stage::Dial), who };
        (!self.is(AccessLog::Off)).then_some(line)
    }

    /// The line of a request that was answered before its target could be read.
    pub(super) fn turned_away(&self, outcome: Outcome) {
        if !self.is(AccessLog::Off) {
            Line { outcome, check: None, dial: None, who: Who::default() }.write(None);
        }
    }
}

impl Line {
    pub(super) fn write(self, went: Option<Went>) {
        let Who { client, target } = self.who;
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(
            target: "postern::access",
            outcome = self.outcome.as_str(),
            check_us = self.check.map(micros),
            dial_us = self.dial.map(micros),
            ended = went.as_ref().map(|went| went.ended.as_str()),
            lasted_ms = went.as_ref().map(|went| micros(went.lasted) / 1000),
            up = went.as_ref().map(|went| went.up),
            down = went.as_ref().map(|went| went.down),
            client = client.map(tracing::field::display),
            destination = target.map(tracing::field::display),
            "access"
        );
    }
}
