//! What the watch remembers of a key's marks, and when it is time for what. No I/O.

use crate::memcached::bucket::Bucket;
use crate::memcached::canary::{GROUPS, due};
use crate::memcached::options::OnLoss;
use crate::memcached::world::{instant, since};
use postern_token::{MarkId, UnixSeconds};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The most marks of one key. More losses than this are not repaired: the key has to be rotated.
pub(super) const MOST_MARKS: u32 = 64;
/// The number of an offer of nothing: in its place stands that records of the key were lost without their witnesses, so that
/// whoever comes later knows it, too.
pub(super) const PARTED: u32 = MOST_MARKS;
/// The offers that are read to know all, and that one.
pub(super) const ALL_OFFERS: Range<u32> = 0..PARTED + 1;
/// For how long the process that began a key may take to offer its first mark, also if a server is away. One that plants none
/// and was killed meanwhile does not say so, nor does one of a version without marks.
const YOUNG: Duration = Duration::from_secs(30);
/// For how long a process that promised a key its first mark is waited for. It takes a fraction of a second.
const PROMISED: Duration = Duration::from_secs(2);
/// For how long a server that is away is waited for before a mark is offered without its buckets.
const COMPLETE_WITHIN: Duration = Duration::from_secs(10);
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
    /// When it was planted, as the store knows it: a restart of this process makes no mark younger.
    pub(super) planted: Option<UnixSeconds>,
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
    incomplete: Option<Instant>,
    tried: Option<Instant>,
    /// The loss of the mark on offer, once it was found.
    loss: Option<Loss>,
    /// When all buckets were read because a token was void.
    suspected: Option<Instant>,
}

/// Where a mark is no longer known.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// Buckets whose tokens are void.
    pub(super) void: usize,
    /// Replicas that answered when they were counted.
    pub(super) answering: usize,
}

/// A key of which no offer was found.
#[derive(Clone, Copy)]
pub(super) struct Unoffered {
    /// There may be one that could not be read.
    pub(super) is_unclear: bool,
    /// Its tokens are requested without a mark.
    pub(super) is_unmarked: bool,
    /// It cannot do without a mark.
    pub(super) must_be_marked: bool,
    /// This process plants marks.
    pub(super) plants: bool,
    /// This process began the key.
    pub(super) is_begun_here: bool,
    /// Whoever began it was to plant a mark.
    pub(super) is_promised: bool,
    /// Whoever began it had its time.
    pub(super) is_old: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// This process plants its first mark.
    Marked,
    /// It plants in place of the process that was to, unless another one does.
    TakenOver,
    /// It stays without marks.
    Unmarked,
    /// Nothing yet: another process may plant.
    Later,
}

/// Whether to look for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// No: the loss is known, and no mark may follow yet.
    Not,
    /// Yes, to let a mark follow. How large the loss is, is known.
    Only,
    /// Yes, and a loss is to be counted.
    AndCount,
}

impl Marking {
    /// What becomes of a key without any offer.
    pub(super) fn begin(&mut self, key: &Unoffered) -> Begin {
        if key.is_unclear || key.is_unmarked {
            Begin::Later
        } else if key.must_be_marked || key.is_begun_here && key.plants {
            Begin::Marked
        } else if key.is_promised && key.plants {
            if self.waited() >= PROMISED { Begin::TakenOver } else { Begin::Later }
        } else if key.is_begun_here || key.is_old || self.waited() >= YOUNG {
            Begin::Unmarked
        } else {
            Begin::Later
        }
    }

    /// A mark is on offer now.
    pub(super) fn adopt(&mut self, number: u32, id: MarkId) {
        (self.offered, self.planted, self.group) = (Some((number, id)), None, None);
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
    fn waited(&mut self) -> Duration {
        since(*self.without.get_or_insert_with(instant))
    }

    /// The offers to be read in this round, beside the first, of a key that seems to have none: others may know one that the store
    /// has lost, and offer the next. All of them in half a minute.
    pub(super) fn next_offers(&mut self) -> Range<u32> {
        let begin = self.number.max(1) % MOST_MARKS;
        self.number = begin + OFFERS;
        begin..(begin + OFFERS).min(MOST_MARKS)
    }

    /// The buckets whose sentinels are to be read now, each of them once. What a server evicts first is what was not read for
    /// longest, as spent records are not: so the sentinels of each group are read at another age.
    pub(super) fn due_sentinels(&mut self, now: UnixSeconds) -> Vec<Bucket> {
        let group = self.planted.and_then(|planted| due(planted.until(now)));
        if group <= self.group {
            return Vec::new();
        }
        self.group = group;
        let first = group.unwrap_or_default() as usize;
        Bucket::all().skip(first).step_by(GROUPS as usize).collect()
    }

    /// The offers after the one with this number to be read in this round: the next, and all before the buckets are read
    /// anew.
    pub(super) fn newer_offers(&self, number: u32) -> Range<u32> {
        let begins_anew = self.next.is_multiple_of(Bucket::all().count());
        number + 1..if begins_anew { ALL_OFFERS.end } else { MOST_MARKS.min(number + 2) }
    }

    /// Whether to look at all buckets now because a token was void, which `void` tells and forgets.
    pub(super) fn suspects(&mut self, void: impl FnOnce() -> bool) -> bool {
        let may_look = self.suspected.is_none_or(|suspected| since(suspected) >= SUSPICIONS);
        let looks = may_look && void();
        if looks {
            self.suspected = Some(instant());
        }
        looks
    }

    /// Whether to look for a loss while this number of replicas answers.
    pub(super) fn look(&mut self, answering: usize, is_suspect: bool) -> Look {
        let is_counted = self.loss.is_some_and(|loss| loss.answering == answering);
        if !is_counted || is_suspect {
            Look::AndCount
        } else if self.may_change() {
            Look::Only
        } else {
            Look::Not
        }
    }

    /// Remembers a loss. True if more tokens are void than before, or if it is the first.
    pub(super) fn is_worse(&mut self, loss: Loss) -> bool {
        self.loss.replace(loss).is_none_or(|before| loss.void > before.void)
    }

    /// Whether another mark may follow the one with this number now.
    pub(super) fn may_follow(&mut self, number: u32, on_loss: OnLoss) -> bool {
        // A precaution voids nothing, so there is nothing to refuse.
        let is_void = self.loss.is_none_or(|loss| loss.void > 0);
        let refuses = on_loss == OnLoss::Refuse && is_void;
        !refuses && number + 1 < MOST_MARKS && self.may_change()
    }

    /// Whether to try to plant now: less and less often while that fails, because what was written stays, and at first only
    /// while all replicas answer.
    pub(super) fn tries(&mut self, all_answer: bool) -> bool {
        let waited = since(*self.incomplete.get_or_insert_with(instant));
        let pause = (waited / 4).clamp(Duration::from_secs(1), BETWEEN);
        let may_try = all_answer || self.has_waited();
        let tries = may_try && self.tried.is_none_or(|tried| since(tried) >= pause);
        if tries {
            self.tried = Some(instant());
        }
        tries
    }

    /// Whether a mark may be offered that this number of buckets knows: when all buckets of all replicas know it, or after a while.
    pub(super) fn may_offer(&self, known: usize, is_whole: bool) -> bool {
        known > 0 && (is_whole || self.has_waited())
    }

    /// Whether what does not answer was waited for.
    fn has_waited(&self) -> bool {
        self.incomplete.is_some_and(|incomplete| since(incomplete) >= COMPLETE_WITHIN)
    }

    /// Whether another mark may follow now.
    fn may_change(&mut self) -> bool {
        self.changes.retain(|change| since(*change) < DAY);
        let within = |time| self.changes.iter().filter(|change| since(**change) < time).count();
        let is_precaution = self.loss.is_some_and(|loss| loss.void == 0);
        within(BETWEEN) == 0 && within(PERIOD) < A_PERIOD && !(is_precaution && within(DAY) >= PRECAUTIONS)
    }
}

#[cfg(test)]
mod tests;
