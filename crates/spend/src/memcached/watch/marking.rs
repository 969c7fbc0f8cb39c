//! What the watch remembers of a key's marks, and when it is time for what. No I/O.

use super::sentinels::Sentinels;
use crate::memcached::bucket::Bucket;
use crate::memcached::undo::{Undo, is_undone};
use crate::memcached::world::{instant, since};
use postern_token::MarkId;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The most marks of one key. More losses than this are not repaired: the key has to be rotated.
pub(super) const MOST_MARKS: u32 = 256;
/// For how long a server that is away is waited for: before a mark is offered without its buckets, and before offers that it
/// may hold are taken for none.
const COMPLETE_WITHIN: Duration = Duration::from_secs(10);
/// Witnesses read in each round: all of them in four minutes, and at once when a token was void.
const A_ROUND: usize = 4;
/// Marks that follow a void one: how many may do so with the first pause, as when all replicas are restarted a few times; the
/// first pause, which doubles from then on, the longest, and how long a mark is remembered for them.
const QUICK: usize = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(600);
/// The shortest time between two marks that follow others which most replicas still know, and the most of them in a day:
/// without them every token is served, too.
const BETWEEN: Duration = Duration::from_secs(60);
const PRECAUTIONS: usize = 3;
const DAY: Duration = Duration::from_secs(86_400);
/// The shortest time between two looks at all buckets because tokens were void.
const SUSPICIONS: Duration = Duration::from_secs(1);

/// What the watch remembers of a key's marks.
#[derive(Default)]
pub(super) struct Marking {
    /// The number and the id of the mark on offer.
    pub(super) offered: Option<(u32, MarkId)>,
    /// The sentinels of each mark of the key, in the order in which the marks became known.
    pub(super) sentinels: Vec<Sentinels>,
    /// The next bucket to be read.
    next: usize,
    /// Since when an offer may be on a server that cannot be read.
    without: Option<Instant>,
    /// The marks of the last day that followed others.
    changes: Vec<Change>,
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

/// A mark that followed another.
struct Change {
    at: Instant,
    /// Whether tokens of the other were void; unknown where another gateway planted it first.
    was_void: Option<bool>,
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
    /// Whether to plant the first mark of a key of which no offer was found. Where an offer may be on a server that cannot be
    /// read, that is waited for: two gateways that offer two marks are safe, and cost clients tokens.
    pub(super) fn begins(&mut self, is_unclear: bool) -> bool {
        !is_unclear || since(*self.without.get_or_insert_with(instant)) >= COMPLETE_WITHIN
    }

    /// A mark is on offer now.
    pub(super) fn adopt(&mut self, number: u32, id: MarkId) {
        self.offered = Some((number, id));
        self.know(id);
        if number > 0 {
            self.follow();
        }
        (self.loss, self.without, self.incomplete, self.tried) = (None, None, None, None);
    }

    /// A mark follows the one on offer.
    fn follow(&mut self) {
        let was_void = self.loss.map(|loss| loss.void > 0);
        self.changes.push(Change { at: instant(), was_void });
    }

    /// There is a mark, on offer or before.
    pub(super) fn know(&mut self, id: MarkId) {
        if self.sentinels.iter().all(|known| known.mark != id) {
            self.sentinels.push(Sentinels::of(id));
        }
    }

    /// The buckets to be read in this round.
    pub(super) fn due(&mut self) -> Vec<Bucket> {
        let begin = self.next;
        self.next += A_ROUND;
        Bucket::all().cycle().skip(begin % Bucket::all().count()).take(A_ROUND).collect()
    }

    /// The offers after the one with this number to be read in this round: the next, and all before the buckets are read
    /// anew.
    pub(super) fn newer_offers(&self, number: u32) -> Range<u32> {
        let begins_anew = self.next.is_multiple_of(Bucket::all().count());
        number + 1..if begins_anew { MOST_MARKS } else { MOST_MARKS.min(number + 2) }
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

    /// The mark is whole again, as after another memory had answered for a while: forgets its loss. True if there was one.
    pub(super) fn heals(&mut self) -> bool {
        (self.without, self.incomplete, self.tried) = (None, None, None);
        self.loss.take().is_some()
    }

    /// Whether another mark may follow the one with this number now.
    pub(super) fn may_follow(&mut self, number: u32) -> bool {
        number + 1 < MOST_MARKS && self.may_change()
    }

    /// Whether to try to plant now: less and less often while that fails, because what was written stays, and at first only
    /// while all replicas answer, unless tokens are void meanwhile.
    pub(super) fn tries(&mut self, all_answer: bool) -> bool {
        let waited = since(*self.incomplete.get_or_insert_with(instant));
        let pause = (waited / 4).clamp(Duration::from_secs(1), LONGEST_PAUSE);
        let may_try = all_answer || self.is_void() || self.has_waited();
        let tries = may_try && self.tried.is_none_or(|tried| since(tried) >= pause);
        if tries {
            self.tried = Some(instant());
        }
        tries
    }

    /// Whether a mark may be offered that this number of buckets knows: once all buckets of all replicas know it, while tokens
    /// are void those of a majority (`answering`), or what there is after a while.
    pub(super) fn may_offer(&self, known: usize, (whole, answering, all): (usize, usize, usize)) -> bool {
        let is_whole = whole == all || self.is_void() && whole == answering;
        known > 0 && (is_whole || self.has_waited())
    }

    /// Whether another mark may follow now.
    fn may_change(&mut self) -> bool {
        self.changes.retain(|change| since(change.at) < DAY);
        let within = |time| self.changes.iter().filter(move |change| since(change.at) < time);
        if self.loss.is_some_and(|loss| loss.void == 0) {
            let precautions = within(DAY).filter(|change| change.was_void != Some(true)).count();
            return within(BETWEEN).count() == 0 && precautions < PRECAUTIONS;
        }
        if is_undone(Undo::FourAnHour) {
            return within(BETWEEN).count() == 0 && within(Duration::from_secs(3_600)).count() < 4;
        }
        let after_void = within(CALM).filter(|change| change.was_void != Some(false)).count();
        let doublings = u32::try_from(after_void.saturating_sub(QUICK)).unwrap_or(u32::MAX);
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE);
        within(pause).count() == 0
    }

    fn is_void(&self) -> bool {
        self.loss.is_some_and(|loss| loss.void > 0)
    }

    /// Whether what does not answer was waited for.
    fn has_waited(&self) -> bool {
        self.incomplete.is_some_and(|incomplete| since(incomplete) >= COMPLETE_WITHIN)
    }
}

#[cfg(test)]
mod tests;
