//! Proves that connections lead to the same records: reads back through each of them records that only this process can
//! have written.

use super::protocol::{Command, Kind, RecordKey, Reply, Value};
use super::undo::{Undo, is_undone};
use super::world::random_bytes;
use crate::Unknown;
use postern_token::UnixSeconds;
use std::time::Duration;

/// Probes at once. They spread over the servers behind a router, and compare the endpoints: where a tenth of the keys
/// lies elsewhere, all 64 miss it with a probability of 0.1%.
const COUNT: usize = 64;
/// How long a probe record lasts, and for how long it is used.
const LIFETIME: Duration = Duration::from_secs(2 * 86_400);
/// How long one lasts that is used once: longer than the clocks of gateways and servers differ.
const BRIEF: Duration = Duration::from_secs(3600);
const IN_USE: Duration = Duration::from_secs(86_400);

/// Reads of records that are not there, to see whether the store answers: they spread over the servers behind a router.
pub(crate) fn reads() -> [Command; 8] {
    std::array::from_fn(|_| Command::Get(RecordKey::new(Kind::Probe, &random_bytes())))
}

/// Whether one of the servers answered.
pub(crate) fn is_answer(replies: &[Reply]) -> bool {
    replies.iter().any(|reply| matches!(reply, Reply::Hit(_) | Reply::Miss))
}

/// Records with random keys and values: a connection that reads one leads to the store it was written to.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    records: Vec<(RecordKey, Value)>,
    written: UnixSeconds,
    expires: UnixSeconds,
}

/// What reading the probes through a connection showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// All were read: the connection leads to the store they were written to.
    Same,
    /// Some were read, others are missing: servers are down, or only a part of the keys leads to the same records.
    Partly,
    /// All were answered with a miss: other records, or the probes were lost.
    Other,
    /// Errors: the replies prove nothing.
    Unclear,
}

impl Proof {
    /// Whether it leads to the same records, at least for a part of the keys.
    pub(crate) fn is_some(self) -> bool {
        matches!(self, Self::Same | Self::Partly)
    }
}

impl Probes {
    /// Probes that have not been written yet.
    pub(crate) fn new(now: UnixSeconds) -> Self {
        let record = |_| (RecordKey::new(Kind::Probe, &random_bytes()), Value::unique());
        Self {
            records: (0..COUNT).map(record).collect(),
            written: now,
            expires: now.saturating_add(LIFETIME),
        }
    }

    /// Probes to compare two endpoints by, once: many may be needed while the endpoints differ.
    pub(crate) fn brief(now: UnixSeconds) -> Self {
        Self { expires: now.saturating_add(BRIEF), ..Self::new(now) }
    }

    pub(crate) fn adds(&self) -> Vec<Command> {
        let add = |&(key, value): &_| Command::Add { key, value, expires: self.expires };
        self.records.iter().map(add).collect()
    }

    pub(crate) fn gets(&self) -> Vec<Command> {
        self.records.iter().map(|(key, _)| Command::Get(*key)).collect()
    }

    /// Those of them whose `add` was answered `STORED`; `None` when there are none.
    pub(crate) fn stored(mut self, replies: &[Reply]) -> Option<Self> {
        let mut replies = replies.iter();
        self.records.retain(|_| replies.next() == Some(&Reply::Stored));
        if self.records.is_empty() { None } else { Some(self) }
    }

    /// The probes at which `here` gave another answer than `there`, where they are.
    pub(crate) fn missed(&self, there: &[Reply], here: &[Reply]) -> Self {
        let mut pairs = there.iter().zip(here);
        let mut missed = self.clone();
        missed.records.retain(|(_, value)| {
            let read = Reply::Hit(*value);
            pairs.next().is_some_and(|(there, here)| {
                *there == read && *here != read && matches!(here, Reply::Miss | Reply::Hit(_))
            })
        });
        missed
    }

    /// An `add` of each with another value: `STORED` shows that there was none.
    pub(crate) fn others(&self) -> Vec<Command> {
        let other = |&(key, _): &_| Command::Add { key, value: Value::unique(), expires: self.expires };
        self.records.iter().map(other).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether the replies to [`Probes::gets`] prove a connection: every probe was read, but for those whose server
    /// answered with an error. One that is missing may lie behind another list of servers, where a spent token is new.
    pub(crate) fn prove(&self, replies: &[Reply]) -> Result<(), Unknown> {
        match self.judge(replies) {
            Proof::Same => Ok(()),
            Proof::Partly if !self.are_missing(replies) || is_undone(Undo::SomeProbes) => Ok(()),
            Proof::Partly | Proof::Other => Err(Unknown::Unproven),
            Proof::Unclear => Err(Unknown::Rejected),
        }
    }

    /// Whether a server reported, authoritatively, that it has no such probe.
    pub(crate) fn are_missing(&self, replies: &[Reply]) -> bool {
        let mut pairs = self.records.iter().zip(replies);
        pairs.any(|((_, value), reply)| *reply != Reply::ServerError && *reply != Reply::Hit(*value))
    }

    /// What the replies to [`Probes::gets`] show.
    pub(crate) fn judge(&self, replies: &[Reply]) -> Proof {
        let pairs = self.records.iter().zip(replies);
        let same = pairs.filter(|((_, value), reply)| **reply == Reply::Hit(*value)).count();
        let is_answered = || replies.iter().all(|reply| matches!(reply, Reply::Miss | Reply::Hit(_)));
        match same {
            0 if is_answered() => Proof::Other,
            0 => Proof::Unclear,
            same if same == replies.len() => Proof::Same,
            _ => Proof::Partly,
        }
    }

    pub(crate) fn are_old(&self, now: UnixSeconds) -> bool {
        now >= self.written.saturating_add(IN_USE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_read_is_proof_and_only_misses_are_proof_of_the_contrary() {
        let probes = Probes::new(UnixSeconds(0));
        let value = probes.records[3].1;
        let mut replies = vec![Reply::Miss; COUNT];
        assert_eq!(probes.judge(&replies), Proof::Other);
        replies[0] = Reply::ServerError;
        assert_eq!(probes.judge(&replies), Proof::Unclear);
        replies[3] = Reply::Hit(value);
        assert_eq!(probes.judge(&replies), Proof::Partly);
        replies[3] = Reply::Hit(Value::unique());
        assert_eq!(probes.judge(&replies), Proof::Unclear);
        assert!(Proof::Same.is_some() && Proof::Partly.is_some());
        assert!(!Proof::Other.is_some() && !Proof::Unclear.is_some());
    }

    #[test]
    fn a_connection_that_lacks_one_probe_is_not_proven_and_one_whose_server_is_down_is() {
        let probes = Probes::new(UnixSeconds(0));
        let mut replies: Vec<Reply> = probes.records.iter().map(|(_, value)| Reply::Hit(*value)).collect();
        assert_eq!(probes.prove(&replies), Ok(()));
        replies[7] = Reply::ServerError;
        assert_eq!(probes.prove(&replies), Ok(()));
        replies[COUNT - 1] = Reply::Miss;
        assert_eq!(probes.prove(&replies), Err(Unknown::Unproven));
        assert_eq!(probes.prove(&[Reply::Miss; COUNT]), Err(Unknown::Unproven));
        assert_eq!(probes.prove(&[Reply::ServerError; COUNT]), Err(Unknown::Rejected));
    }

    #[test]
    fn only_what_is_there_can_be_missed() {
        let probes = Probes::new(UnixSeconds(0));
        let there: Vec<Reply> = probes.records.iter().map(|(_, value)| Reply::Hit(*value)).collect();
        assert_eq!(probes.judge(&there), Proof::Same);
        assert!(probes.missed(&there, &there).is_empty());
        let mut here = there.clone();
        here[1] = Reply::Miss;
        here[2] = Reply::Hit(Value::unique());
        here[3] = Reply::ServerError;
        assert_eq!(probes.missed(&there, &here).records, probes.records[1..3]);
        assert!(probes.missed(&here, &there).is_empty());
    }

    #[test]
    fn a_server_that_answers_with_errors_alone_is_none() {
        let mut replies = [Reply::ServerError; 8];
        assert!(!is_answer(&replies));
        replies[7] = Reply::Miss;
        assert!(is_answer(&replies));
    }

    #[test]
    fn probes_that_are_used_once_end_soon() {
        let lasts = |probes: Probes| Duration::from_secs(probes.expires.0 - 1_000);
        assert_eq!(lasts(Probes::brief(UnixSeconds(1_000))), BRIEF);
        assert!(lasts(Probes::new(UnixSeconds(1_000))) > IN_USE);
    }

    #[test]
    fn only_stored_probes_count() {
        let probes = Probes::new(UnixSeconds(0));
        let mut replies = vec![Reply::ServerError; COUNT];
        assert!(probes.clone().stored(&replies).is_none());
        replies[5] = Reply::Stored;
        assert_eq!(probes.clone().stored(&replies).unwrap().records, [probes.records[5]]);
    }
}
