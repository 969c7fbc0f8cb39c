//! The verdict on one spend from the replicas' votes: one of one, or two of three. No I/O.
//!
//! A replica votes for admission only if it took the record *and* knows the token's mark, both shown in the same write. A
//! majority of such votes admits. So an admitted token is recorded on a majority next to the mark's witnesses, and any other
//! majority includes one of these replicas: to admit the token again, that one would have to lose the record and keep the
//! witness. Replicas may therefore be lost one after another, without a repair in between.

use super::world::{Undo, is_undone};
use crate::{Spend, Unknown};

pub(crate) const REPLICAS: usize = 3;

pub(crate) const fn majority(replicas: usize) -> usize {
    replicas / 2 + 1
}

pub(super) type Vote = Result<Spend, Unknown>;

#[derive(Debug)]
pub(super) struct Votes {
    votes: [Option<Vote>; REPLICAS],
    replicas: usize,
}

impl Votes {
    pub(super) const fn of(replicas: usize) -> Self {
        Self { votes: [None; REPLICAS], replicas }
    }

    pub(super) fn is_awaited(&self, replica: usize) -> bool {
        replica < self.replicas && self.votes[replica].is_none()
    }

    pub(super) fn count(&mut self, replica: usize, vote: Vote) {
        self.votes[replica] = Some(vote);
    }

    fn cast(&self) -> impl Iterator<Item = Vote> {
        self.votes.iter().flatten().copied()
    }

    /// Returns the verdict as soon as no outstanding vote can change it. `is_superseded` returns whether tokens are requested
    /// for another mark; it is called only if the votes do not decide otherwise.
    pub(super) fn decided(&self, is_superseded: impl FnOnce() -> bool) -> Option<Result<Spend, Unknown>> {
        let of = |wanted| self.cast().filter(|vote| *vote == Ok(wanted)).count();
        let (majority, awaited) = (majority(self.replicas), self.replicas - self.cast().count());
        if of(Spend::Admitted) >= majority || admits_apart(of(Spend::Admitted), of(Spend::Void), majority) {
            return Some(Ok(Spend::Admitted));
        }
        if of(Spend::Admitted) + awaited >= majority {
            return None;
        }
        if of(Spend::AlreadySpent) > 0 {
            return Some(Ok(Spend::AlreadySpent));
        }
        if of(Spend::Void) >= majority {
            return Some(Ok(Spend::Void));
        }
        if awaited > 0 {
            return None; // it may report that the token is spent
        }
        // Both replicas have the record now, and a missing witness never returns: the token cannot be admitted any more,
        // whatever the third replica has. While the token's own mark is on offer, another token of that mark would do no better.
        if of(Spend::Admitted) > 0 && of(Spend::Void) > 0 && is_superseded() {
            return Some(Ok(Spend::Void));
        }
        let unknown = self.cast().find_map(Vote::err);
        Some(Err(unknown.unwrap_or(Unknown::Rejected)))
    }
}

/// Admits as a majority route would: a witness on one replica and a record on another. In simulations only.
fn admits_apart(admitted: usize, void: usize, majority: usize) -> bool {
    is_undone(Undo::WitnessApart) && admitted > 0 && admitted + void >= majority
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

    const fn three(votes: [Option<Vote>; 3]) -> Votes {
        Votes { votes, replicas: 3 }
    }

    fn all() -> impl Iterator<Item = Votes> {
        let with = |first| VOTES.into_iter().map(move |second| (first, second));
        let pairs = VOTES.into_iter().flat_map(with);
        pairs.flat_map(|(first, second)| VOTES.into_iter().map(move |third| three([first, second, third])))
    }

    fn admissions(votes: &Votes) -> usize {
        votes.votes.iter().flatten().filter(|vote| **vote == Ok(Spend::Admitted)).count()
    }

    #[test]
    fn two_votes_admit_and_nothing_else_does() {
        for votes in all() {
            let is_admitted = votes.decided(|| false) == Some(Ok(Spend::Admitted));
            assert_eq!(is_admitted, admissions(&votes) >= 2, "{votes:?}");
        }
    }

    #[test]
    fn one_replica_alone_decides_by_its_vote() {
        assert_eq!((majority(1), majority(3)), (1, 2));
        for vote in VOTES {
            let votes = Votes { votes: [vote, None, None], replicas: 1 };
            assert_eq!(votes.decided(|| true), vote, "{vote:?}");
        }
    }

    #[test]
    fn a_verdict_stands_whatever_comes_later_but_for_its_reason() {
        for votes in all() {
            let Some(verdict) = votes.decided(|| false) else { continue };
            for replica in (0..REPLICAS).filter(|replica| votes.is_awaited(*replica)) {
                for late in VOTES.into_iter().flatten() {
                    let mut later = three(votes.votes);
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
        for votes in all().filter(|votes| votes.votes.iter().all(Option::is_some)) {
            assert!(votes.decided(|| false).is_some(), "{votes:?}");
        }
    }

    /// While one replica is silent, a token is void only if the other two can never form a majority for it.
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
            assert_eq!(three(votes).decided(|| true), verdict, "{votes:?}");
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
            assert_eq!(three(votes).decided(|| false), verdict, "{votes:?}");
        }
    }
}
