//! What three replicas' answers to one spend decide together. Without I/O.
//!
//! A replica's vote is an admission only if it took the record *and* knows the token's mark, which it shows in the same
//! write. Two such votes admit. So an admitted token stands on two replicas beside the mark's witnesses, and any two
//! replicas include one of these: to admit it again, that one would have to lose the record and keep the witness.
//! Replicas may therefore be lost one after another, without a repair in between.

use super::undo::{Undo, is_undone};
use crate::{Spend, Unknown};

/// The replicas of a quorum.
pub(crate) const REPLICAS: usize = 3;
/// The votes that decide.
pub(crate) const MAJORITY: usize = 2;

/// The answer of one replica.
pub(super) type Vote = Result<Spend, Unknown>;

/// The votes that have come so far.
#[derive(Debug, Default)]
pub(super) struct Votes([Option<Vote>; REPLICAS]);

impl Votes {
    pub(super) fn is_awaited(&self, replica: usize) -> bool {
        self.0[replica].is_none()
    }

    pub(super) fn count(&mut self, replica: usize, vote: Vote) {
        self.0[replica] = Some(vote);
    }

    /// The verdict, as soon as no vote that is still to come can change it. `is_superseded` says whether tokens
    /// are requested for another mark; only votes that decide nothing else make it be called.
    pub(super) fn decided(&self, is_superseded: impl FnOnce() -> bool) -> Option<Result<Spend, Unknown>> {
        let of = |wanted| self.0.iter().flatten().filter(|vote| **vote == Ok(wanted)).count();
        let awaited = self.0.iter().filter(|vote| vote.is_none()).count();
        if of(Spend::Admitted) >= MAJORITY || admits_apart(of(Spend::Admitted), of(Spend::Void)) {
            return Some(Ok(Spend::Admitted));
        }
        if of(Spend::Admitted) + awaited >= MAJORITY {
            return None;
        }
        if of(Spend::AlreadySpent) > 0 {
            return Some(Ok(Spend::AlreadySpent));
        }
        if of(Spend::Void) >= MAJORITY {
            return Some(Ok(Spend::Void));
        }
        if awaited > 0 {
            return None; // it may report that the token is spent
        }
        // Both have the record now, and a witness that is missing never returns: the token cannot be admitted any more,
        // whatever the third has. While its own mark is on offer, another token of it would fare no better.
        if of(Spend::Admitted) > 0 && of(Spend::Void) > 0 && is_superseded() {
            return Some(Ok(Spend::Void));
        }
        let unknown = self.0.iter().flatten().find_map(|vote| vote.err());
        Some(Err(unknown.unwrap_or(Unknown::Rejected)))
    }
}

/// What a majority route would do: a witness on one replica and a record on another admit together. In simulations only.
fn admits_apart(admitted: usize, void: usize) -> bool {
    is_undone(Undo::WitnessApart) && admitted > 0 && admitted + void >= MAJORITY
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTES: [Option<Vote>; 5] = [
        None,
        Some(Ok(Spend::Admitted)),
        Some(Ok(Spend::AlreadySpent)),
        Some(Ok(Spend::Void)),
        Some(Err(Unknown::TimedOut)),
    ];

    fn all() -> impl Iterator<Item = Votes> {
        let with = |first| VOTES.into_iter().map(move |second| (first, second));
        let pairs = VOTES.into_iter().flat_map(with);
        pairs.flat_map(|(first, second)| VOTES.into_iter().map(move |third| Votes([first, second, third])))
    }

    fn admissions(votes: &Votes) -> usize {
        votes.0.iter().flatten().filter(|vote| **vote == Ok(Spend::Admitted)).count()
    }

    #[test]
    fn two_votes_admit_and_nothing_else_does() {
        for votes in all() {
            let is_admitted = votes.decided(|| false) == Some(Ok(Spend::Admitted));
            assert_eq!(is_admitted, admissions(&votes) >= 2, "{votes:?}");
        }
    }

    #[test]
    fn a_verdict_stands_whatever_comes_later_but_for_its_reason() {
        for votes in all() {
            let Some(verdict) = votes.decided(|| false) else { continue };
            for replica in (0..REPLICAS).filter(|replica| votes.is_awaited(*replica)) {
                for late in VOTES.into_iter().flatten() {
                    let mut later = Votes(votes.0);
                    later.count(replica, late);
                    let is_admitted = |verdict| verdict == Ok(Spend::Admitted);
                    let decided = later.decided(|| false).expect("it was decided before");
                    assert_eq!(is_admitted(decided), is_admitted(verdict), "{votes:?} and {late:?}");
                }
            }
        }
    }

    #[test]
    fn all_three_votes_decide() {
        for votes in all().filter(|votes| votes.0.iter().all(Option::is_some)) {
            assert!(votes.decided(|| false).is_some(), "{votes:?}");
        }
    }

    /// Where one replica is silent, a token is void only if the other two can never make a majority for it.
    #[test]
    fn a_token_of_a_superseded_mark_is_void_once_two_replicas_rule_it_out() {
        let [_, admitted, spent, void, unknown] = VOTES;
        for (votes, verdict) in [
            ([admitted, None, void], None),
            ([admitted, unknown, void], Some(Ok(Spend::Void))),
            ([void, unknown, admitted], Some(Ok(Spend::Void))),
            ([admitted, spent, void], Some(Ok(Spend::AlreadySpent))),
            ([unknown, unknown, void], Some(Err(Unknown::TimedOut))),
            ([admitted, unknown, unknown], Some(Err(Unknown::TimedOut))),
        ] {
            assert_eq!(Votes(votes).decided(|| true), verdict, "{votes:?}");
        }
        for votes in all() {
            let is_admitted = |verdict| verdict == Some(Ok(Spend::Admitted));
            assert_eq!(
                is_admitted(votes.decided(|| true)),
                is_admitted(votes.decided(|| false)),
                "{votes:?}"
            );
        }
    }

    #[test]
    fn the_reasons_of_refusals() {
        let [_, admitted, spent, void, unknown] = VOTES;
        for (votes, verdict) in [
            ([admitted, spent, None], None),
            ([admitted, spent, void], Some(Ok(Spend::AlreadySpent))),
            ([unknown, spent, None], Some(Ok(Spend::AlreadySpent))),
            ([void, None, void], Some(Ok(Spend::Void))),
            ([void, unknown, None], None),
            ([void, unknown, spent], Some(Ok(Spend::AlreadySpent))),
            ([void, unknown, void], Some(Ok(Spend::Void))),
            ([admitted, unknown, void], Some(Err(Unknown::TimedOut))),
        ] {
            assert_eq!(Votes(votes).decided(|| false), verdict, "{votes:?}");
        }
    }
}
