//! Proof that connections lead to one memory: records that only this process can have written, read back through each.

use super::protocol::{Command, Kind, RecordKey, Reply, Value};
use postern_token::UnixSeconds;
use std::time::Duration;

/// Probes at once: they spread over the servers behind a router, so that one dead server does not hide the memory.
const COUNT: usize = 8;
/// How long a probe record lasts, and for how long it is used.
const LIFETIME: Duration = Duration::from_secs(2 * 86_400);
const IN_USE: Duration = Duration::from_secs(86_400);

/// Records with keys and values drawn at random: who reads one reads the memory it was written to.
#[derive(Clone, Debug)]
pub(crate) struct Probes {
    records: Vec<(RecordKey, Value)>,
    written: UnixSeconds,
}

/// What reading the probes through a connection has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// At least one was read: it is the memory they were written to.
    Same,
    /// All were answered, and none is there: another memory, or one that has forgotten.
    Other,
    /// Errors: nothing is shown.
    Unclear,
}

impl Probes {
    /// Probes that have not been written yet.
    pub(crate) fn new(now: UnixSeconds) -> Self {
        let record = |_| (RecordKey::new(Kind::Probe, &rand::random()), Value::unique());
        Self { records: (0..COUNT).map(record).collect(), written: now }
    }

    pub(crate) fn adds(&self) -> Vec<Command> {
        let expires = self.written.saturating_add(LIFETIME);
        self.records.iter().map(|&(key, value)| Command::Add { key, value, expires }).collect()
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

    /// What the replies to [`Probes::gets`] show.
    pub(crate) fn judge(&self, replies: &[Reply]) -> Proof {
        let same = self.records.iter().zip(replies).any(|((_, value), reply)| *reply == Reply::Hit(*value));
        if same {
            Proof::Same
        } else if replies.iter().all(|reply| matches!(reply, Reply::Miss | Reply::Hit(_))) {
            Proof::Other
        } else {
            Proof::Unclear
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
        assert_eq!(probes.judge(&replies), Proof::Same);
        replies[3] = Reply::Hit(Value::unique());
        assert_eq!(probes.judge(&replies), Proof::Unclear);
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
