//! An issuer's part of every quota, if several issuers share their accounts. Nothing here reads a clock.
//!
//! Each issuer of a group counts alone and gives `share` of a quota, so that all of them together never give more than the whole,
//! whatever fails. A change of shares keeps to that within a period as well: a smaller share applies at once, a larger one from
//! the next period, and a new issuer begins with the period after its first start. So the share of a period is the smallest that
//! was in force in it.

use arc_swap::ArcSwap;
use postern_config::text_value;
use postern_token::UnixSeconds;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum denominator: no group is larger.
const MOST: u32 = 1_000_000;
const ACCEPTED: &str = "an exact fraction, such as \"1/3\"";

/// A reduced fraction from 0 to 1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Share {
    numerator: u32,
    denominator: u32,
}

impl Share {
    /// The whole quota: an issuer without a group.
    pub const WHOLE: Self = Self { numerator: 1, denominator: 1 };
    /// Nothing: an issuer in the period in which it joins a group.
    pub(crate) const NONE: Self = Self { numerator: 0, denominator: 1 };

    /// Returns the reduced fraction; `None` if it is above one, or its denominator is out of range.
    pub(crate) fn new(numerator: u32, denominator: u32) -> Option<Self> {
        let divisor = greatest_common_divisor(numerator, denominator);
        (numerator <= denominator && (1..=MOST).contains(&denominator))
            .then(|| Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    /// Returns (numerator, denominator).
    pub(crate) const fn parts(self) -> (u32, u32) {
        (self.numerator, self.denominator)
    }

    /// Returns the share of a number of tokens, rounded down.
    pub(crate) fn of(self, tokens: u64) -> u64 {
        let part = u128::from(tokens) * u128::from(self.numerator) / u128::from(self.denominator);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Returns the largest number of tokens whose share rounds down to zero.
    pub(crate) fn most_without(self) -> u64 {
        match self.numerator {
            0 => u64::MAX,
            numerator => u64::from((self.denominator - 1) / numerator),
        }
    }

    /// Returns the share as a number from 0 to 1.
    pub(crate) fn ratio(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one.max(1) } else { greatest_common_divisor(other, one % other) }
}

impl Default for Share {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let cross = |one: &Self, other: &Self| u64::from(one.numerator) * u64::from(other.denominator);
        cross(self, other).cmp(&cross(other, self))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.trim().parse::<u32>().ok();
        let parts = text.split_once('/').and_then(|(above, below)| number(above).zip(number(below)));
        let (numerator, denominator) =
            parts.ok_or_else(|| "it is not two whole numbers with a \"/\" between them".to_owned())?;
        Self::new(numerator, denominator)
            .ok_or_else(|| format!("it is not from 0 to 1, with a denominator up to {MOST}"))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

text_value!(Share, ACCEPTED);

/// A share, and the time from which it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    pub(crate) since: UnixSeconds,
    pub(crate) share: Share,
}

/// The shares that this issuer has had, oldest first. Empty: always the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares(Vec<Since>);

impl Shares {
    pub(crate) fn new(known: Vec<Since>) -> Self {
        Self(known)
    }

    /// Returns what to add if this share is configured at `now`. An issuer that `joins` a group and is new in it gives nothing in
    /// the present period; any other issuer may have given everything.
    pub(crate) fn to_add(&self, share: Share, joins: bool, now: UnixSeconds) -> Vec<Since> {
        let before = if joins { Share::NONE } else { Share::WHOLE };
        let first = self.0.is_empty().then_some(Since { since: UnixSeconds(0), share: before });
        let last = self.0.last().copied().or(first);
        // A clock that was ahead, or is behind, must not let a larger share begin early.
        let since = last.map_or(now, |last| last.since.max(now));
        match last {
            Some(last) if last.share == share => Vec::new(),
            _ => first.into_iter().chain([Since { since, share }]).collect(),
        }
    }

    pub(crate) fn add(&mut self, added: Vec<Since>) {
        self.0.extend(added);
    }

    /// Returns the share of the period that begins at `start`: the smallest since its first second.
    pub(crate) fn of_period(&self, start: UnixSeconds) -> Share {
        let (before, within) = self.0.split_at(self.0.partition_point(|change| change.since < start));
        let at_start = before.last().map_or(Share::WHOLE, |change| change.share);
        within.iter().map(|change| change.share).fold(at_start, Share::min)
    }

    pub(crate) fn configured(&self) -> Share {
        self.0.last().map_or(Share::WHOLE, |change| change.share)
    }
}

/// The shares, read by every account's meter. Reading takes no lock.
pub(crate) type SharesInForce = Arc<ArcSwap<Shares>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Share {
        text.parse().unwrap()
    }

    fn shares(changes: &[(u64, &str)], joins: bool) -> Shares {
        let mut shares = Shares::default();
        for (now, configured) in changes {
            shares.add(shares.to_add(share(configured), joins, UnixSeconds(*now)));
        }
        shares
    }

    fn of(shares: &Shares, start: u64) -> String {
        shares.of_period(UnixSeconds(start)).to_string()
    }

    #[test]
    fn a_share_is_an_exact_fraction_and_is_rounded_down() {
        for (text, written) in [("1/3", "1/3"), (" 2 / 4 ", "1/2"), ("7/7", "1/1"), ("0/3", "0/1")] {
            assert_eq!(share(text).to_string(), written);
        }
        for text in ["", "1", "1/", "4/3", "1/0", "0.5/1", "-1/2", "1/1000001", "1/2/3"] {
            assert!(text.parse::<Share>().is_err(), "{text:?}");
        }
        assert_eq!([0, 1, 2, 3, 100].map(|tokens| share("1/3").of(tokens)), [0, 0, 0, 1, 33]);
        assert_eq!(share("2/3").of(u64::MAX), u64::MAX / 3 * 2);
        for text in ["1/3", "2/3", "2/5", "1/1", "999/1000"] {
            let most = share(text).most_without();
            assert_eq!((share(text).of(most), share(text).of(most + 1) > 0), (0, true), "{text}");
        }
        assert!(share("1/3") < share("2/5") && Share::NONE < share("1/1000000"));
    }

    #[test]
    fn a_smaller_share_counts_at_once_and_a_larger_one_from_the_next_period_on() {
        let first = shares(&[(50, "1/1"), (150, "1/2"), (160, "2/3"), (250, "1/3")], false);
        assert_eq!(first.0.len(), 4, "the whole before it is known, and no more");
        for (start, expected) in
            [(0, "1/3"), (100, "1/3"), (150, "1/3"), (151, "1/3"), (161, "1/3"), (251, "1/3")]
        {
            assert_eq!(of(&first, start), expected, "of the period that begins at {start}");
        }
        // The shares before the change at 250, of periods that were over by then.
        let until = shares(&[(150, "1/2"), (160, "2/3")], false);
        assert_eq!(
            [0, 100, 160, 161, 200].map(|start| of(&until, start)),
            ["1/2", "1/2", "1/2", "2/3", "2/3"]
        );
        assert_eq!(of(&Shares::default(), 7), "1/1");
    }

    #[test]
    fn a_new_issuer_begins_with_the_period_after_its_first_start() {
        let new = shares(&[(150, "1/2"), (160, "1/2")], true);
        assert_eq!([0, 100, 150, 151, 200].map(|start| of(&new, start)), ["0/1", "0/1", "0/1", "1/2", "1/2"]);
        assert_eq!((new.configured(), new.0.len()), (share("1/2"), 2));
    }

    #[test]
    fn a_clock_that_is_behind_lets_no_share_begin_early() {
        let shares = shares(&[(1_000, "1/3"), (10, "1/2")], false);
        assert_eq!([100, 1_000, 1_001].map(|start| of(&shares, start)), ["1/3", "1/3", "1/2"]);
    }

    /// Two issuers whose shares add up to one after an operator has changed both, the smaller one first: in no period do
    /// they give more than the whole.
    #[test]
    fn shares_that_are_lowered_before_others_are_raised_never_add_up_to_more_than_one() {
        let parts = ["1/1", "1/2", "1/3", "2/3", "1/6", "5/6"];
        for seed in 0..2_000_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let (mut first, mut second) = (Shares::default(), Shares::default());
            let mut now = 50;
            let mut first_has = Share::WHOLE;
            for _ in 0..4 {
                let wanted = share(parts[1 + next(5) as usize]);
                let (above, below) = wanted.parts();
                let rest = Share::new(below - above, below).unwrap();
                let is_lowered = wanted < first_has;
                for turn in 0..2 {
                    now += next(120);
                    if is_lowered == (turn == 0) {
                        first.add(first.to_add(wanted, false, UnixSeconds(now)));
                    } else {
                        second.add(second.to_add(rest, true, UnixSeconds(now)));
                    }
                }
                first_has = wanted;
            }
            for start in (0..10).map(|period| UnixSeconds(period * 100)) {
                let (one, other) = (first.of_period(start), second.of_period(start));
                assert!(one.of(600) + other.of(600) <= 600, "seed {seed}, {start}: {first:?} {second:?}");
            }
        }
    }
}
