//! What the watch remembers of a key's marks, and when it is time for what. No I/O.

use crate::memcached::bucket::Bucket;
use crate::memcached::canary::{GROUPS, due};
use crate::memcached::world::{instant, since};
use postern_token::MarkId;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Witnesses read in each round: all of them in four minutes, and at once when a token was void.
const A_ROUND: usize = 4;
/// Offers read in each round while a key seems to have none.
const OFFERS: u32 = 2;
/// The shortest time between two marks, and the time in which there are [`A_PERIOD`] at most.
const BETWEEN: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_secs(3600);
const A_PERIOD: usize = 4;
/// The most marks in a day that follow others which most replicas still know: without them every token is served, too, and
/// agents mint for four new marks in a day.
const PRECAUTIONS: usize = 3;
const DAY: Duration = Duration::from_secs(86_400);
/// The shortest time between two looks at all buckets because tokens were void.
const SUSPICIONS: Duration = Duration::from_secs(5);

/// What the watch remembers of a key's marks.
#[derive(Default)]
pub(super) struct Marking {
    /// The number and the id of the mark on offer.
    pub(super) offered: Option<(u32, MarkId)>,
    /// Since when.
    since: Option<Instant>,
    /// The next bucket to be read.
    next: usize,
    /// The number of the next offer to be read while there seems to be none.
    number: u32,
    /// Since when no offer was found.
    without: Option<Instant>,
    /// The last group of sentinels that was read.
    group: Option<u32>,
    /// When marks followed others, in the last day.
    changes: Vec<Instant>,
    /// Since when a mark could not be planted completely, and when that was last tried.
    pub(super) incomplete: Option<Instant>,
    pub(super) tried: Option<Instant>,
    /// The loss of the mark on offer, once it was found.
    pub(super) loss: Option<Loss>,
    /// When all buckets were read because a token was void.
    pub(super) suspected: Option<Instant>,
}

/// Where a mark is no longer known.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// Buckets whose tokens are void.
    pub(super) void: usize,
    /// Replicas that answered when they were counted.
    pub(super) answering: usize,
}

impl Marking {
    /// A mark is on offer now.
    pub(super) fn adopt(&mut self, number: u32, id: MarkId) {
        (self.offered, self.since, self.group) = (Some((number, id)), Some(instant()), None);
        if number > 0 {
            self.changes.push(instant());
        }
        (self.loss, self.incomplete, self.tried) = (None, None, None);
    }

    /// The buckets to be read in this round.
    pub(super) fn due(&mut self) -> Vec<Bucket> {
        let begin = self.next;
        self.next += A_ROUND;
        Bucket::all().cycle().skip(begin % Bucket::all().count()).take(A_ROUND).collect()
    }

    /// For how long no offer was found.
    pub(super) fn waited(&mut self) -> Duration {
        since(*self.without.get_or_insert_with(instant))
    }

    /// The offers to be read in this round, beside the first, of a key that seems to have none: others may know one that the store
    /// has lost, and offer the next. All of them in half a minute.
    pub(super) fn next_offers(&mut self, most: u32) -> Range<u32> {
        let begin = self.number.max(1) % most;
        self.number = begin + OFFERS;
        begin..(begin + OFFERS).min(most)
    }

    /// The buckets whose sentinels are to be read now, each of them once. What a server evicts first is what was not read for
    /// longest, as spent records are not: so the sentinels of each group are read at another age.
    /// `begun` is the age of the key as the store holds it, which a restart of this process does not shorten.
    pub(super) fn due_sentinels(&mut self, begun: Option<Duration>) -> Vec<Bucket> {
        let age = begun.or(self.since.map(since)).unwrap_or_default();
        let group = due(age);
        if group <= self.group {
            return Vec::new();
        }
        self.group = group;
        let first = group.unwrap_or_default() as usize;
        Bucket::all().skip(first).step_by(GROUPS as usize).collect()
    }

    /// Whether the next read begins all buckets anew.
    pub(super) fn begins_anew(&self) -> bool {
        self.next.is_multiple_of(Bucket::all().count())
    }

    /// Whether a void token is a reason to look now.
    pub(super) fn may_suspect(&self) -> bool {
        self.suspected.is_none_or(|suspected| since(suspected) >= SUSPICIONS)
    }

    /// Whether to try to plant now: less and less often while that fails, because what was written stays.
    pub(super) fn may_try(&self) -> bool {
        let waited = self.incomplete.map_or(Duration::ZERO, since);
        let pause = (waited / 4).clamp(Duration::from_secs(1), BETWEEN);
        self.tried.is_none_or(|tried| since(tried) >= pause)
    }

    /// Whether another mark may follow now.
    pub(super) fn may_change(&mut self) -> bool {
        self.changes.retain(|change| since(*change) < DAY);
        let within = |time| self.changes.iter().filter(|change| since(**change) < time).count();
        let is_precaution = self.loss.is_some_and(|loss| loss.void == 0);
        within(BETWEEN) == 0 && within(PERIOD) < A_PERIOD && !(is_precaution && within(DAY) >= PRECAUTIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{ChallengeDigest, TokenKeyId};

    fn torn(void: usize) -> Marking {
        Marking { loss: Some(Loss { void, answering: 3 }), ..Marking::default() }
    }

    /// How many marks follow in a day in which each is found torn at once.
    async fn changes_in_a_day(void: usize) -> usize {
        let mut marking = torn(void);
        for _ in 0..24 * 60 {
            if marking.may_change() {
                marking.changes.push(instant());
            }
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        marking.changes.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_keeps_losing_records_does_not_use_up_what_agents_accept() {
        assert_eq!(changes_in_a_day(0).await, PRECAUTIONS);
        assert_eq!(changes_in_a_day(300).await, 24 * A_PERIOD);
    }

    /// What a failed attempt has written stays until the key ends.
    #[tokio::test(start_paused = true)]
    async fn planting_that_fails_is_tried_less_and_less_often() {
        let mut marking = Marking { incomplete: Some(instant()), ..Marking::default() };
        let mut tries = 0;
        for _ in 0..3_600 {
            if marking.may_try() {
                (marking.tried, tries) = (Some(instant()), tries + 1);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((60..=80).contains(&tries), "{tries} in an hour");
    }

    #[tokio::test(start_paused = true)]
    async fn marks_do_not_follow_one_another_within_a_minute() {
        let mut marking = torn(300);
        assert!(marking.may_change());
        marking.changes.push(instant());
        tokio::time::advance(BETWEEN - Duration::from_secs(1)).await;
        assert!(!marking.may_change());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(marking.may_change());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_mark_of_a_key_follows_no_other() {
        let id = MarkId::derive("proxy.example", TokenKeyId([1; 32]), ChallengeDigest::of(b"mark"));
        let mut marking = torn(300);
        for (number, may_change) in [(0, true), (1, false)] {
            (marking.incomplete, marking.tried) = (Some(instant()), Some(instant()));
            marking.adopt(number, id);
            assert_eq!((marking.offered, marking.may_change()), (Some((number, id)), may_change));
            assert!(marking.loss.is_none() && marking.incomplete.is_none() && marking.tried.is_none());
        }
    }

    #[test]
    fn every_witness_is_read_in_its_turn() {
        let mut marking = Marking::default();
        let rounds = Bucket::all().count() / A_ROUND;
        for round in 0..2 * rounds {
            assert_eq!(marking.begins_anew(), round % rounds == 0);
            let begin = round % rounds * A_ROUND;
            assert!(marking.due().into_iter().eq(Bucket::all().skip(begin).take(A_ROUND)), "round {round}");
        }
    }

    #[test]
    fn every_offer_beside_the_first_is_looked_for_in_its_turn() {
        let mut marking = Marking::default();
        for _ in 0..2 {
            let looked: Vec<_> = (0..32).flat_map(|_| marking.next_offers(64)).collect();
            assert!(looked.into_iter().eq(1..64));
        }
    }

    /// One that was read is young again for the server.
    #[tokio::test(start_paused = true)]
    async fn the_sentinels_of_a_group_are_read_once_at_its_age() {
        let mut marking = Marking::default();
        let mut read = Vec::new();
        for (age, is_due) in [(1, false), (3, true), (3, false), (2, false), (10_000, true), (10_000, false)]
        {
            let buckets = marking.due_sentinels(Some(Duration::from_secs(age)));
            let group = due(Duration::from_secs(age)).unwrap_or_default();
            let expected = Bucket::all().enumerate().filter(|(at, _)| *at as u32 % GROUPS == group);
            let expected: Vec<_> = expected.map(|(_, bucket)| bucket).filter(|_| is_due).collect();
            assert_eq!(buckets, expected, "at an age of {age} seconds");
            assert!(buckets.iter().all(|bucket| !read.contains(bucket)));
            read.extend(buckets);
        }
        assert!(!read.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn void_tokens_bring_a_look_at_all_buckets_every_few_seconds_at_most() {
        let mut marking = Marking::default();
        assert!(marking.may_suspect());
        marking.suspected = Some(instant());
        tokio::time::advance(SUSPICIONS - Duration::from_millis(1)).await;
        assert!(!marking.may_suspect());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(marking.may_suspect());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_without_an_offer_waits_since_it_was_first_missed() {
        let mut marking = Marking::default();
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(marking.waited(), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(marking.waited(), Duration::from_secs(3));
    }
}
