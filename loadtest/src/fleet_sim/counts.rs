//! Counts of one run.

use super::queue::{Nanos, SECOND};
use super::route::Reply;
use super::stores::Verb;
use histogram::Histogram;
use postern_spend::{Spend, Unknown};
use std::collections::BTreeMap;

/// Bytes of a command and of its reply without the frames around them: `crates/spend/src/memcached/protocol.rs`.
const GET_BYTES: u64 = 53;
const ADD_BYTES: u64 = 93;

/// Messages between two regions, or within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// How a presentation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Verdict(Result<Spend, Unknown>),
    /// A token of another region's origin.
    OtherOrigin,
    /// The gateway went away.
    Broken,
}

/// A token that was answered 200 a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Double {
    pub(crate) token: u32,
    pub(crate) at: Nanos,
}

pub(crate) struct Counts {
    pub(crate) presentations: u64,
    pub(crate) opened: u64,
    pub(crate) spent: u64,
    pub(crate) broken: u64,
    pub(crate) other_origin: u64,
    pub(crate) unknown: BTreeMap<&'static str, u64>,
    /// Presentations without a verdict, by the second in which they ended.
    pub(crate) unknown_in: Vec<u64>,
    pub(crate) gets: u64,
    pub(crate) adds: u64,
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) doubles: u64,
    pub(crate) first_doubles: Vec<Double>,
    pub(crate) last_double: Option<Nanos>,
    /// Microseconds that checks took which ended in an admission.
    pub(crate) times: Histogram,
    pub(crate) events: u64,
    pub(crate) most_waiting: usize,
}

/// Doubles that are kept with their token and time.
const KEPT: usize = 8;

impl Counts {
    pub(crate) fn new(regions: usize) -> Self {
        Self {
            presentations: 0,
            opened: 0,
            spent: 0,
            broken: 0,
            other_origin: 0,
            unknown: BTreeMap::new(),
            unknown_in: Vec::new(),
            gets: 0,
            adds: 0,
            links: vec![vec![Link::default(); regions]; regions],
            doubles: 0,
            first_doubles: Vec::new(),
            last_double: None,
            times: Histogram::new(5, 40).expect("a valid shape"),
            events: 0,
            most_waiting: 0,
        }
    }

    pub(crate) fn sent(&mut self, from: usize, to: usize, verb: Verb) {
        let bytes = match verb {
            Verb::Get => GET_BYTES,
            Verb::Add => ADD_BYTES,
        };
        self.link(from, to, bytes);
    }

    pub(crate) fn served(&mut self, verb: Verb) {
        match verb {
            Verb::Get => self.gets += 1,
            Verb::Add => self.adds += 1,
        }
    }

    pub(crate) fn answered(&mut self, from: usize, to: usize, reply: Reply) {
        let bytes = match reply {
            Reply::Stored => 8,
            Reply::NotStored => 12,
            Reply::Hit(_) => 92,
            Reply::Miss => 5,
            Reply::Error => 0, // no connection
        };
        self.link(from, to, bytes);
    }

    fn link(&mut self, from: usize, to: usize, bytes: u64) {
        let link = &mut self.links[from][to];
        link.messages += 1;
        link.bytes += bytes;
    }

    pub(crate) fn ended(&mut self, ended: Ended, took: Nanos, now: Nanos) {
        match ended {
            Ended::Verdict(Ok(Spend::Admitted)) => {
                self.opened += 1;
                // A check takes less than a second: far within the histogram.
                let _ = self.times.increment(took / 1_000);
            }
            Ended::Verdict(Ok(Spend::AlreadySpent | Spend::Void)) => self.spent += 1,
            Ended::Verdict(Err(reason)) => {
                *self.unknown.entry(reason.reason()).or_default() += 1;
                let second = (now / SECOND) as usize;
                if self.unknown_in.len() <= second {
                    self.unknown_in.resize(second + 1, 0);
                }
                self.unknown_in[second] += 1;
            }
            Ended::OtherOrigin => self.other_origin += 1,
            Ended::Broken => self.broken += 1,
        }
    }

    pub(crate) fn double(&mut self, token: u32, at: Nanos) {
        self.doubles += 1;
        self.last_double = Some(at);
        if self.first_doubles.len() < KEPT {
            self.first_doubles.push(Double { token, at });
        }
    }

    /// A percentile of the times of admitted checks, in milliseconds; at most a thirtieth too large.
    pub(crate) fn milliseconds(&self, share: f64) -> f64 {
        let found = self.times.quantiles(&[share]).ok().flatten();
        let bucket = found.and_then(|found| found.entries().values().next().map(|bucket| bucket.end()));
        bucket.map_or(0.0, |micros| micros as f64 / 1e3)
    }
}
