//! The state of a key's marks, and the timing of the watch's actions. No I/O.

use crate::memcached::bucket::Bucket;
use crate::memcached::world::{Undo, instant, is_undone, since};
use postern_token::{MarkId, UnixSeconds};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The maximum number of marks per key. Further losses are not repaired: the key must be rotated.
pub(super) const MOST_MARKS: u32 = 256;
/// The time for which a server that is away is awaited: before a mark is offered without its buckets, and before offers that it
/// may hold are treated as absent.
const COMPLETE_WITHIN: Duration = Duration::from_secs(10);
/// Buckets whose witnesses are read in each round: all of them in four minutes, or all at once after a void token.
const A_ROUND: usize = 4;
/// Marks that follow a void one: the number that may follow after the first pause (as when all replicas are restarted a few
/// times), the first pause, which then doubles, the longest pause, and the time for which a mark counts.
const QUICK: usize = 10;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(600);
/// Marks that follow ones that a majority still knows: the minimum interval, and the maximum per day. Without such a mark every
/// token is served, too.
const BETWEEN: Duration = Duration::from_secs(60);
const PRECAUTIONS: usize = 3;
const DAY: Duration = Duration::from_secs(86_400);
/// The minimum interval between two surveys of all buckets because of void tokens.
const SUSPICIONS: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Marking {
    /// The number and the id of the mark on offer.
    pub(super) offered: Option<(u32, MarkId)>,
    /// The sentinels of each mark of the key, in the order in which the marks became known.
    pub(super) sentinels: Vec<Sentinels>,
    /// The index of the next bucket to read.
    next: usize,
    /// The time since which an offer may be on a server that cannot be read.
    without: Option<Instant>,
    /// The marks of the last day that followed others.
    changes: Vec<Change>,
    /// The time since which a mark could not be planted completely, and the time of the last attempt.
    incomplete: Option<Instant>,
    tried: Option<Instant>,
    /// The time since which a mark waits for the addresses of servers.
    nameless: Option<Instant>,
    /// The loss of the mark on offer, once found.
    pub(super) loss: Option<Loss>,
    /// The time at which a loss that is known was last looked at, or became known.
    looked_back: Option<Instant>,
    /// The time of the last survey of all buckets because of a void token.
    suspected: Option<Instant>,
}

/// The extent of a loss of a mark.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    pub(super) void: usize,
    /// Replicas that answered when the buckets were counted.
    pub(super) answering: usize,
}

struct Change {
    at: Instant,
    /// `true` if tokens of the previous mark were void; `None` if another gateway planted this mark first.
    was_void: Option<bool>,
}

impl Marking {
    /// Returns `true` if a mark may be planted now, of which no offer was found. If an offer may be on a server that cannot be
    /// read (`is_unclear`), that server is awaited first: two gateways that offer two marks are safe, but cost clients tokens.
    pub(super) fn begins(&mut self, is_unclear: bool) -> bool {
        !is_unclear || since(*self.without.get_or_insert_with(instant)) >= COMPLETE_WITHIN
    }

    pub(super) fn adopt(&mut self, number: u32, id: MarkId) {
        self.offered = Some((number, id));
        self.know(id);
        if number > 0 {
            self.follow();
        }
        (self.loss, self.looked_back) = (None, None);
        (self.without, self.incomplete, self.tried, self.nameless) = (None, None, None, None);
    }

    fn follow(&mut self) {
        let was_void = self.loss.map(|loss| loss.void > 0);
        self.changes.push(Change { at: instant(), was_void });
    }

    /// Adds a mark, on offer or earlier, if it is new.
    pub(super) fn know(&mut self, id: MarkId) {
        if self.sentinels.iter().all(|known| known.mark != id) {
            self.sentinels.push(Sentinels::of(id));
        }
    }

    pub(super) fn due(&mut self) -> Vec<Bucket> {
        let begin = self.next;
        self.next += A_ROUND;
        Bucket::all().cycle().skip(begin % Bucket::all().count()).take(A_ROUND).collect()
    }

    /// Returns the numbers of the later offers to read in this round: the next one, or all of them before the buckets are read
    /// from the beginning.
    pub(super) fn newer_offers(&self, number: u32) -> Range<u32> {
        let starts_over = self.next.is_multiple_of(Bucket::all().count());
        number + 1..if starts_over { MOST_MARKS } else { MOST_MARKS.min(number + 2) }
    }

    /// Returns `true` if all buckets are to be read now because a token was void. `void` returns the suspicion and clears it.
    pub(super) fn suspects(&mut self, void: impl FnOnce() -> bool) -> bool {
        let may_look = self.suspected.is_none_or(|suspected| since(suspected) >= SUSPICIONS);
        let looks = may_look && void();
        if looks {
            self.suspected = Some(instant());
        }
        looks
    }

    /// Returns `true` if a loss is to be looked for while this number of replicas answers: not if it is known, and no mark may
    /// follow yet.
    pub(super) fn looks(&mut self, answering: usize, is_suspect: bool) -> bool {
        let is_counted = self.loss.is_some_and(|loss| loss.answering == answering);
        !is_counted || is_suspect || self.may_change()
    }

    /// Returns `true` if a known loss is to be looked at again, because its replica may be back with all records: once in
    /// [`BETWEEN`].
    pub(super) fn looks_back(&mut self) -> bool {
        let looks = since(*self.looked_back.get_or_insert_with(instant)) >= BETWEEN;
        if looks {
            self.looked_back = Some(instant());
        }
        looks
    }

    /// Records a loss. Returns `true` if it is the first, or if more tokens are void than before.
    pub(super) fn is_worse(&mut self, loss: Loss) -> bool {
        self.loss.replace(loss).is_none_or(|before| loss.void > before.void)
    }

    /// Forgets the loss because the mark is whole at the `answering` replicas, as after another memory had answered for a while.
    /// Returns `true` if there was a loss. It stays while fewer replicas answer than when it was seen: the one that has it may be
    /// away.
    pub(super) fn heals(&mut self, answering: usize) -> bool {
        if self.loss.is_some_and(|loss| answering < loss.answering) {
            return false;
        }
        (self.looked_back, self.without, self.incomplete, self.tried) = (None, None, None, None);
        self.loss.take().is_some()
    }

    /// Returns `true` if tokens are void and no further mark may follow.
    pub(super) fn is_used_up(&self) -> bool {
        self.is_void() && self.offered.is_some_and(|(number, _)| number + 1 >= MOST_MARKS)
    }

    pub(super) fn may_follow(&mut self, number: u32) -> bool {
        number + 1 < MOST_MARKS && self.may_change()
    }

    /// Returns `true` if the pause after the last attempt to plant is over. Pauses grow, because the records written stay.
    pub(super) fn is_due(&self) -> bool {
        let waited = self.incomplete.map(since).unwrap_or_default();
        let pause = (waited / 4).clamp(Duration::from_secs(1), LONGEST_PAUSE);
        self.tried.is_none_or(|tried| since(tried) >= pause)
    }

    /// Returns `true` if the addresses of all servers are found, or have been awaited long enough.
    pub(super) fn reaches(&mut self, are_found: bool) -> bool {
        if are_found {
            self.nameless = None;
        }
        are_found || since(*self.nameless.get_or_insert_with(instant)) >= COMPLETE_WITHIN
    }

    /// Returns `true` if planting is to be tried now: at first only while all replicas answer, unless tokens are void.
    pub(super) fn tries(&mut self, all_answer: bool) -> bool {
        self.incomplete.get_or_insert_with(instant);
        let tries = (all_answer || self.is_void() || self.has_waited()) && self.is_due();
        if tries {
            self.tried = Some(instant());
        }
        tries
    }

    /// Returns `true` if a mark known to `known` buckets may be offered: once all buckets of all replicas know it; while tokens
    /// are void, once all buckets of the `answering` replicas do; or after a while with any bucket.
    pub(super) fn may_offer(&self, known: usize, (whole, answering, all): (usize, usize, usize)) -> bool {
        let is_whole = whole == all || self.is_void() && whole == answering;
        known > 0 && (is_whole || self.has_waited())
    }

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

    /// Returns `true` if replicas that do not answer have been awaited long enough.
    fn has_waited(&self) -> bool {
        self.incomplete.is_some_and(|incomplete| since(incomplete) >= COMPLETE_WITHIN)
    }
}

/// The number of groups of sentinels: the last is read at an age of 95 days.
const GROUPS: u32 = 160;
/// The ratio between the ages of successive groups, and the exponent for the age of the first group in seconds.
const GROWTH: f64 = 1.1;
const FIRST: i32 = 8;

/// The sentinels of one mark: the schedule for reading them, and the replicas where the mark is to be closed.
///
/// A server first evicts the records not read for longest, such as spent records. Reading a sentinel makes it young again for
/// the server, so each group of sentinels is read only once, at its own age. Sentinels of a superseded mark continue to be read,
/// because its tokens stay valid as long as their key.
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
mod tests;
