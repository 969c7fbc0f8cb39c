//! Whether the store serves clients, in a sentence for the operator: served, served in part, or refused.
//!
//! Two sources decide: the results of the checks of the last seconds and, if there were none, what the store's own
//! watch could read. Both name the cause and the remedy.

use crate::config::LossPolicy;
use crate::gate::Condition;
use postern_spend::Unknown;
use postern_spend::memcached::{BUCKETS, EndpointHealth, Round};
use std::collections::VecDeque;
use std::time::Duration;

/// Samples that make up the last ten seconds, at four a second.
const SAMPLES: usize = 40;
/// For how long a connection that led elsewhere is reported. A pool replaces its connections more often.
const LATELY: Duration = Duration::from_secs(60);
/// Fewer checks than this that were all refused may be an accident.
const FEW: u64 = 8;

/// Checks that needed a verdict, and those of them that had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) total: u64,
    pub(crate) refused: u64,
}

/// The checks of the last seconds, from totals that only grow.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<Checks>);

impl Recent {
    /// Takes a sample. Returns the difference to the oldest one.
    pub(crate) fn tick(&mut self, total: Checks) -> Checks {
        self.0.push_back(total);
        if self.0.len() > SAMPLES {
            self.0.pop_front();
        }
        let oldest = self.0.front().copied().unwrap_or_default();
        Checks {
            total: total.total.saturating_sub(oldest.total),
            refused: total.refused.saturating_sub(oldest.refused),
        }
    }
}

/// What is known of the store at one moment.
#[derive(Clone)]
pub(crate) struct Findings {
    /// Whether a spend could be answered.
    pub(crate) ready: Result<(), Unknown>,
    pub(crate) recent: Checks,
    /// Why the last check without a verdict had none.
    pub(crate) reason: Option<Unknown>,
    /// What the watch of a shared store could read, the last time.
    pub(crate) round: Round,
    /// The age of its last full round, where losses may go unnoticed.
    pub(crate) blind: Option<Duration>,
    /// An address some of whose connections led to other records lately.
    pub(crate) strays: Option<String>,
    /// Buckets of the store that no longer know the mark on offer.
    pub(crate) torn: usize,
    /// Of three replicas, those that do not answer or reject records.
    pub(crate) away: usize,
    /// Buckets in which some replica does not know the mark on offer.
    pub(crate) lacking: usize,
    /// Two replicas lead to the same servers.
    pub(crate) overlaps: bool,
    /// Addresses of servers that drop records when they are full.
    pub(crate) evicting: Vec<String>,
    /// A sentence for each server that is nearly full.
    pub(crate) filling: Vec<String>,
    /// Keys in use, and those of them whose tokens the store refuses all, because it lost records of them.
    pub(crate) keys: usize,
    pub(crate) refused_keys: usize,
    /// Keys of which records were lost, and what is done then.
    pub(crate) lost: usize,
    pub(crate) on_loss: LossPolicy,
}

impl Findings {
    /// The worst condition, in a sentence.
    pub(crate) fn condition(&self) -> Condition {
        if let Err(reason) = self.ready {
            let way_out = if self.overlaps { OVERLAPS } else { way_out(reason) };
            let text =
                format!("{reason}: every request is refused with 503, and no token is read. {way_out}");
            return Condition::NotReady(text);
        }
        if self.keys > 0 && self.refused_keys == self.keys {
            return Condition::NotReady(format!(
                "records of {} were lost, of every one in use, and on_loss = \"refuse\": every request is refused with 503. \
                 Rotate the issuer's keys",
                plural(self.keys, "token key")
            ));
        }
        let Checks { total, refused } = self.recent;
        let reason = self.reason.unwrap_or(Unknown::Rejected);
        if total >= FEW && refused == total {
            let text = format!(
                "none of the last {total} checks got a verdict, and all were refused with 503: {reason}. {}",
                way_out(reason)
            );
            return Condition::NotReady(text);
        }
        let mut found = Vec::new();
        if refused >= 2 && refused * 100 >= total {
            let share = percent(refused, total);
            found.push(format!(
                "{share} of the checks of the last 10 s ({refused} of {total}) got no verdict and were refused with 503: \
                 {reason}. {}",
                way_out(reason)
            ));
        } else if self.round.unclear > 0 {
            let Round { requested, unclear } = self.round;
            let share = percent(unclear as u64, requested as u64);
            found.push(format!(
                "{unclear} of {requested} canaries cannot be read, so about {share} of the checks will be refused with 503: a \
                 server behind the store's address is down or full. {}",
                way_out(Unknown::Rejected)
            ));
        }
        if let Some(age) = self.blind {
            found.push(format!(
                "for {} s a part of the store has given the gateway no answer, so a loss of records would go unnoticed, and \
                 spent tokens may be spent again. {}",
                age.as_secs(),
                way_out(Unknown::Unwatched)
            ));
        }
        if let Some(address) = &self.strays {
            found.push(format!(
                "some connections to {address} lead to other records than the rest, and are not used: the address leads to \
                 several stores, by turns. Give every router behind it the same list of servers"
            ));
        }
        if self.overlaps {
            found.push(OVERLAPS.to_owned());
        }
        if self.lacking > self.torn {
            let share = percent(self.lacking as u64, u64::from(BUCKETS));
            found.push(format!(
                "one of the three replicas of the store does not know the present mark for {share} of the tokens: the others \
                 decide about these, and none of them may fail until the next mark, which follows within a minute, or \
                 within a day after three"
            ));
        }
        if self.away > 0 {
            found.push(
                "one of the three replicas of the store does not answer, or rejects records as a full one does: the other two \
                 decide, and none of them may fail now. Start its servers, give the full ones more memory (-m), or mend the way \
                 to them"
                    .to_owned(),
            );
        }
        if self.torn > 0 {
            let share = percent(self.torn as u64, u64::from(BUCKETS));
            found.push(format!(
                "the store has lost records, so {share} of the tokens that clients hold are void and refused with 407; tokens \
                 of a new mark take their place, unless on_loss = \"refuse\" or four have followed within an hour: rotate \
                 the issuer's keys then"
            ));
        }
        if !self.evicting.is_empty() {
            found.push(format!(
                "the memcached at {} drops records when it is full, and their tokens can be spent again: start it with -M",
                self.evicting.join(", ")
            ));
        }
        found.extend(self.filling.iter().cloned());
        if self.lost > 0 {
            found.push(self.lost());
        }
        if found.is_empty() { Condition::Ready } else { Condition::Degraded(found.join("; ")) }
    }

    fn lost(&self) -> String {
        let keys = plural(self.lost, "token key");
        match self.on_loss {
            LossPolicy::Warn => format!(
                "records of {keys} were lost, so spent tokens may be spent again; rotate the issuer's keys"
            ),
            LossPolicy::Refuse => {
                format!(
                    "records of {keys} were lost, and their tokens are refused with 503; rotate the issuer's keys"
                )
            }
            LossPolicy::Rotate => format!(
                "records of {keys} were lost, and their tokens are refused like those of a retired key; rotate the \
                 issuer's keys"
            ),
        }
    }
}

const OVERLAPS: &str = "Two replicas of the store lead to the same servers, so their votes are one, and no mark is offered: \
                        give each of the three lists in store.memcached.replicas servers of its own";

/// The address of which a connection led to other records lately.
pub(crate) fn strays(endpoints: &[EndpointHealth]) -> Option<String> {
    let lately = |endpoint: &&EndpointHealth| endpoint.strayed.is_some_and(|age| age < LATELY);
    endpoints.iter().find(lately).map(|endpoint| endpoint.address.to_string())
}

/// What to do about a store that gives no verdict.
pub(crate) fn way_out(reason: Unknown) -> &'static str {
    match reason {
        Unknown::DiskFull => "Free disk space, or raise the quota: it is tried again every second",
        Unknown::SyncFailed => "Check the disk, then restart the gateway",
        Unknown::Unproven => {
            "Make all of store.memcached.addresses lead to the same records, or remove the others"
        }
        Unknown::ClockAhead { .. } => "Set the clocks of this machine and of the store's servers",
        Unknown::Unwatched => {
            "Find the server that hangs behind the store's address; let the router give up on it sooner than \
             store.memcached.timeout"
        }
        Unknown::Overloaded => "Raise store.memcached.queue or pool_size, or start another gateway",
        Unknown::Unmarked => {
            "Wait a few seconds for the first witnesses; if it lasts, some of the store's servers cannot be reached"
        }
        Unknown::RecordsLost | Unknown::EpochRetired => "Rotate the issuer's keys",
        Unknown::Rejected => "Start the server that is down, or give the full one more memory",
        Unknown::Unavailable(_) | Unknown::TimedOut | Unknown::Garbled => {
            "Check that the store's servers run, and the way to them"
        }
    }
}

/// "1 token key", "2 token keys".
pub(crate) fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

fn percent(part: u64, whole: u64) -> String {
    match (part * 100).checked_div(whole) {
        None | Some(0) => "less than 1%".to_owned(),
        Some(share) => format!("{share}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Findings = Findings {
        ready: Ok(()),
        recent: Checks { total: 300, refused: 0 },
        reason: None,
        round: Round { requested: 128, unclear: 0 },
        blind: None,
        strays: None,
        torn: 0,
        away: 0,
        lacking: 0,
        overlaps: false,
        evicting: Vec::new(),
        filling: Vec::new(),
        keys: 2,
        refused_keys: 0,
        lost: 0,
        on_loss: LossPolicy::Warn,
    };

    fn degraded(findings: &Findings) -> String {
        match findings.condition() {
            Condition::Degraded(text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn not_ready(findings: &Findings) -> String {
        match findings.condition() {
            Condition::NotReady(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_third_that_is_refused_is_degraded_and_all_of_it_not_ready() {
        assert_eq!(WELL.condition(), Condition::Ready);
        let recent = Checks { total: 300, refused: 100 };
        let third = Findings { recent, reason: Some(Unknown::Rejected), ..WELL };
        let text = degraded(&third);
        assert!(text.starts_with("33% of the checks of the last 10 s (100 of 300) got no verdict"), "{text}");
        assert!(text.ends_with("Start the server that is down, or give the full one more memory"), "{text}");
        let all = Findings { recent: Checks { total: 9, refused: 9 }, ..third.clone() };
        assert!(not_ready(&all).starts_with("none of the last 9 checks got a verdict"));
        let one = Findings { recent: Checks { total: 300, refused: 1 }, ..third.clone() };
        assert_eq!(one.condition(), Condition::Ready, "one in 300 is no state");
    }

    #[test]
    fn without_traffic_the_canaries_tell() {
        let idle =
            Findings { recent: Checks::default(), round: Round { requested: 128, unclear: 43 }, ..WELL };
        let text = degraded(&idle);
        assert!(text.starts_with("43 of 128 canaries cannot be read, so about 33% of the checks"), "{text}");
    }

    #[test]
    fn lost_records_are_degraded_and_those_of_every_key_under_refuse_not_ready() {
        let blind = Findings { blind: Some(Duration::from_secs(9)), ..WELL };
        assert!(degraded(&blind).starts_with("for 9 s a part of the store has given the gateway no answer"));
        let strays = Findings { strays: Some("127.0.0.1:1".to_owned()), ..WELL };
        assert!(degraded(&strays).starts_with("some connections to 127.0.0.1:1 lead to other records"));

        let one = Findings { lost: 1, ..WELL };
        assert!(degraded(&one).starts_with("records of 1 token key were lost, so spent tokens may be"));
        let refuse = LossPolicy::Refuse;
        let some = Findings { lost: 1, on_loss: refuse, refused_keys: 1, ..WELL };
        assert!(degraded(&some).contains("their tokens are refused with 503"));
        let all = Findings { lost: 2, refused_keys: 2, ..some.clone() };
        assert!(not_ready(&all).starts_with("records of 2 token keys were lost, of every one in use"));
    }

    #[test]
    fn servers_that_drop_records_are_named() {
        let evicting = ["10.0.1.1:11211", "10.0.1.2:11211"].map(str::to_owned).to_vec();
        let text = degraded(&Findings { evicting, ..WELL });
        assert!(text.starts_with("the memcached at 10.0.1.1:11211, 10.0.1.2:11211 drops records"), "{text}");
    }

    #[test]
    fn a_replica_that_is_away_is_degraded() {
        let text = degraded(&Findings { away: 1, ..WELL });
        assert!(text.starts_with("one of the three replicas of the store does not answer"), "{text}");
        let filling = vec!["the memcached at a:1 uses 81% of its memory".to_owned()];
        assert!(degraded(&Findings { filling, ..WELL }).starts_with("the memcached at a:1 uses 81%"));
        let text = degraded(&Findings { lacking: 512, ..WELL });
        assert!(text.contains("does not know the present mark for 50% of the tokens"), "{text}");
        let text = not_ready(&Findings { ready: Err(Unknown::Unmarked), overlaps: true, ..WELL });
        assert!(text.contains("no mark yet") && text.contains("lead to the same servers"), "{text}");
    }

    #[test]
    fn a_store_that_refuses_says_how_to_end_that() {
        let full = Findings { ready: Err(Unknown::DiskFull), ..WELL };
        let text = not_ready(&full);
        assert!(text.contains("no room left") && text.contains("Free disk space"), "{text}");
    }

    #[test]
    fn what_was_longer_ago_than_the_samples_does_not_count() {
        let mut recent = Recent::default();
        assert_eq!(recent.tick(Checks { total: 5, refused: 5 }), Checks::default());
        assert_eq!(recent.tick(Checks { total: 15, refused: 8 }), Checks { total: 10, refused: 3 });
        for _ in 0..SAMPLES {
            recent.tick(Checks { total: 15, refused: 8 });
        }
        assert_eq!(recent.tick(Checks { total: 15, refused: 8 }), Checks::default());
    }
}
