//! The schedule for reading the sentinels of a mark, and the replicas where the mark is to be closed. No I/O.
//!
//! A server first evicts the records not read for longest, such as spent records. Reading a sentinel makes it young again for
//! the server, so each group of sentinels is read only once, at its own age. Sentinels of a superseded mark continue to be read,
//! because its tokens stay valid as long as their key.

use crate::memcached::bucket::Bucket;
use postern_token::{MarkId, UnixSeconds};
use std::time::Duration;

/// The number of groups of sentinels: the last is read at an age of 95 days.
const GROUPS: u32 = 160;
/// The ratio between the ages of successive groups, and the exponent for the age of the first group in seconds.
const GROWTH: f64 = 1.1;
const FIRST: i32 = 8;

/// The state of the sentinels of one mark.
pub(super) struct Sentinels {
    pub(super) mark: MarkId,
    /// The time at which the mark was planted, read from the store: a restart of this process makes no mark younger.
    pub(super) planted: Option<UnixSeconds>,
    /// Replicas where the mark is to be closed.
    pub(super) closing: Vec<usize>,
    /// The last group that was read.
    group: Option<u32>,
    /// All are to be read, because the store has lost records.
    all: bool,
}

impl Sentinels {
    pub(super) const fn of(mark: MarkId) -> Self {
        Self { mark, planted: None, closing: Vec::new(), group: None, all: false }
    }

    /// Makes the next round read all sentinels.
    pub(super) const fn read_all(&mut self) {
        self.all = true;
    }

    /// Returns the buckets whose sentinels are to be read now, each once.
    pub(super) fn due(&mut self, now: UnixSeconds) -> Vec<Bucket> {
        if std::mem::take(&mut self.all) {
            return Bucket::all().collect();
        }
        let group = self.planted.and_then(|planted| due(planted.until(now)));
        let before = std::mem::replace(&mut self.group, group); // a clock that was ahead is followed back
        if group <= before {
            return Vec::new();
        }
        let first = group.unwrap_or_default() as usize;
        Bucket::all().skip(first).step_by(GROUPS as usize).collect()
    }
}

/// Returns the last group that is due at this age; `None` before the first.
fn due(age: Duration) -> Option<u32> {
    let age = age.as_secs_f64();
    if age < GROWTH.powi(FIRST) {
        return None;
    }
    let power = age.ln() / GROWTH.ln();
    Some((power as u32).saturating_sub(FIRST as u32).min(GROUPS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{ChallengeDigest, TokenKeyId};

    fn planted(at: u64) -> Sentinels {
        let mark = MarkId::derive("proxy.example", TokenKeyId([1; 32]), ChallengeDigest::of(b"mark"));
        Sentinels { planted: Some(UnixSeconds(at)), ..Sentinels::of(mark) }
    }

    /// Reading a sentinel makes it young again for the server.
    #[test]
    fn a_group_is_read_once_at_its_age() {
        let (mut sentinels, mut read) = (planted(1_000), Vec::new());
        for (age, is_due) in [(1, false), (3, true), (3, false), (2, false), (10_000, true), (10_000, false)]
        {
            let buckets = sentinels.due(UnixSeconds(1_000 + age));
            let group = due(Duration::from_secs(age)).unwrap_or_default();
            let expected = Bucket::all().enumerate().filter(|(at, _)| *at as u32 % GROUPS == group);
            let expected: Vec<_> = expected.map(|(_, bucket)| bucket).filter(|_| is_due).collect();
            assert_eq!(buckets, expected, "at an age of {age} seconds");
            assert!(buckets.iter().all(|bucket| !read.contains(bucket)));
            read.extend(buckets);
        }
        assert!(!read.is_empty());
    }

    #[test]
    fn all_are_read_once_after_a_loss() {
        let mut sentinels = planted(1_000);
        sentinels.read_all();
        assert!(sentinels.due(UnixSeconds(1_000)).into_iter().eq(Bucket::all()));
        assert_eq!(sentinels.due(UnixSeconds(1_000)), []);
    }

    #[test]
    fn groups_come_due_one_after_the_other_and_last_for_three_months() {
        let at = |age: u64| due(Duration::from_secs(age));
        assert_eq!((at(0), at(2), at(3)), (None, None, Some(3)));
        assert!(at(90 * 86_400).unwrap() < GROUPS - 1);
        assert_eq!(at(u64::MAX / 2), Some(GROUPS - 1));
        let ages = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
        assert!(ages.windows(2).all(|pair| at(pair[1]) > at(pair[0])));
    }
}
