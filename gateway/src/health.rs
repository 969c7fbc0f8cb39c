//! Health of the store in sentences for the operator: it serves clients, serves a part of them, or refuses them.
//!
//! Two sources decide: the results of the checks of the last ten seconds, and the observations of the store's watch. The
//! sentences contain the cause and the remedy.

use crate::gate::{Condition, Reason};
use postern_spend::Unknown;
use postern_spend::memcached::{BUCKETS, EndpointHealth, Health, Round};
use std::collections::VecDeque;

/// Samples of the last ten seconds, at four per second.
const SAMPLES: usize = 40;
/// Minimum number of checks from which "all refused" makes the store not ready: fewer may be an accident.
const FEW: u64 = 8;

/// Numbers of checks that needed a verdict, and of those that got none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    pub(crate) total: u64,
    pub(crate) refused: u64,
}

/// Sliding window over the monotonic totals of checks.
#[derive(Default)]
pub(crate) struct Recent(VecDeque<Checks>);

impl Recent {
    /// Adds a sample. Returns the difference to the oldest sample.
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

/// Observations of the store at one moment.
#[derive(Clone)]
pub(crate) struct Findings {
    /// `Ok` if a spend could be answered.
    pub(crate) ready: Result<(), Unknown>,
    pub(crate) recent: Checks,
    /// Reason of the last check without a verdict.
    pub(crate) reason: Option<Unknown>,
    /// State of a shared store; `None` for an embedded one.
    pub(crate) health: Option<Health>,
    /// Addresses of servers that drop records when they are full.
    pub(crate) evicting: Vec<String>,
    /// One sentence per server that is nearly full.
    pub(crate) filling: Vec<String>,
    /// One sentence per server whose clock is too far from this machine's.
    pub(crate) skewed: Vec<String>,
}

impl Findings {
    /// Returns the worst condition, with a sentence for the operator.
    pub(crate) fn condition(&self) -> Condition {
        if let Err(reason) = self.ready {
            let text = format!(
                "{reason}: every request is refused with 503, and no token is read. {}",
                self.way_out(reason)
            );
            return Condition::NotReady(text);
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
        if let Some(health) = self.health.as_ref().filter(|health| health.is_voteless()) {
            return Condition::NotReady(of_away(health));
        }
        let mut found = Vec::new();
        if refused >= 2 && refused * 100 >= total {
            let share = percent(refused, total);
            let text = format!(
                "{share} of the checks of the last 10 s ({refused} of {total}) got no verdict and were refused with 503: \
                 {reason}. {}",
                way_out(reason)
            );
            found.push(Reason::new("refused", text));
        }
        found.extend(self.health.as_ref().map(of_shared).unwrap_or_default());
        if !self.evicting.is_empty() {
            let text = format!(
                "the memcached at {} drops records when it is full, so no mark is planted there any more: start it with -M",
                self.evicting.join(", ")
            );
            found.push(Reason::new("evicting", text));
        }
        found.extend(self.filling.iter().map(|text| Reason::new("filling", text)));
        if !self.skewed.is_empty() {
            // A mark stands, since checks get verdicts: that of the server, or those of two other replicas.
            let text = format!(
                "{}, so records of spent tokens end too early or too late there: set both clocks by NTP",
                self.skewed.join("; ")
            );
            found.push(Reason::new("clock", text));
        }
        Condition::of(found)
    }

    fn way_out(&self, reason: Unknown) -> String {
        match &self.health {
            Some(health) if health.overlaps => OVERLAPS.to_owned(),
            Some(health) if health.used_up && reason == Unknown::Unmarked => USED_UP.to_owned(),
            Some(health) if reason == Unknown::Unmarked => {
                let clocks = (!self.skewed.is_empty()).then(|| {
                    let skewed = self.skewed.join("; ");
                    format!("{skewed}, so witnesses end too early there, and no mark stands: set both clocks by NTP")
                });
                unfit(health).or(clocks).unwrap_or_else(|| way_out(reason).to_owned())
            }
            None if reason == Unknown::Unmarked => {
                "It offers one with the first key of the issuer".to_owned()
            }
            _ => way_out(reason).to_owned(),
        }
    }
}

/// Returns the remedy for servers on which no mark is planted because they evict records or split buckets; `None` without such
/// servers.
fn unfit(health: &Health) -> Option<String> {
    let reason = health.endpoints.iter().find_map(|endpoint| endpoint.unfit)?;
    let addresses = addresses(health, |endpoint| endpoint.unfit == Some(reason));
    Some(format!("{addresses} {}", reason.explanation()))
}

/// Returns a sentence for each problem of a shared store that still serves.
fn of_shared(health: &Health) -> Vec<Reason> {
    let Health { round: Round { requested, unclear }, torn, lacking, closed, .. } = *health;
    let mut found = Vec::new();
    let mut add = |kind: &str, text: String| found.push(Reason::new(kind, text));
    if unclear > 0 && health.replicas() == 1 {
        let share = percent(unclear as u64, requested as u64);
        add(
            "unclear",
            format!(
                "{unclear} of {requested} records cannot be read, so about {share} of the checks will be refused with 503: a server \
             behind the store's address is down or full. {}",
                way_out(Unknown::Rejected)
            ),
        );
    }
    if lacking > torn {
        let share = percent(lacking as u64, u64::from(BUCKETS));
        add(
            "lacking",
            format!(
                "for {share} of the tokens the present mark is unknown to replica {} of the store: the other two decide about \
             these, and neither of them may fail until the next mark, which follows within a minute, or within a day after \
             three",
                replicas_at(&health.lacking_at, health)
            ),
        );
    }
    if !health.away.is_empty() {
        add("away", of_away(health));
    }
    if torn > 0 {
        let share = percent(torn as u64, u64::from(BUCKETS));
        add(
            "torn",
            format!(
                "the store has lost records, so {share} of the tokens that clients hold are void and refused with 407; tokens of a \
             new mark take their place within a minute"
            ),
        );
    }
    if closed > 0 {
        let (whose, where_closed) = match (health.replicas(), closed) {
            (1, _) => ("the store has".to_owned(), "its mark was closed"),
            (_, 1) => (
                "1 of the three replicas of the store has".to_owned(),
                "the mark was closed there, and the other two decide",
            ),
            (_, more) => {
                (format!("{more} of the three replicas of the store have"), "the mark was closed there")
            }
        };
        add(
            "closed",
            format!(
                "{whose} lost records and kept their witnesses, so {where_closed}: a router keeps records of one bucket on \
             several servers (twemproxy needs hash_tag: \"||\"), a server evicts (start it with -M), or its slabs were moved. Until \
             that is mended it happens again"
            ),
        );
    }
    found
}

/// Describes replicas that do not answer, lack servers or reject records.
fn of_away(health: &Health) -> String {
    if health.replicas() == 1 {
        return "the store rejects records, as a full one does: checks are refused with 503. Give its servers more memory (-m)"
            .to_owned();
    }
    let (verb, cost) = match health.away.len() {
        1 => {
            (["does not answer, lacks", "rejects"], "the other two decide, and neither of them may fail now")
        }
        _ => (
            ["do not answer, lack", "reject"],
            "two are needed for a verdict, so checks are refused with 503",
        ),
    };
    let [lacks, rejects] = verb;
    format!(
        "of the three replicas of the store {} {lacks} servers, or {rejects} records as a full one does: {cost}. Start the servers, \
         give the full ones more memory (-m), or mend the way to them",
        replicas_at(&health.away, health)
    )
}

/// Formats addresses as "10.0.0.1:11211, 10.0.0.2:11211".
fn addresses(health: &Health, is_meant: impl Fn(&EndpointHealth) -> bool) -> String {
    let meant = health.endpoints.iter().filter(|endpoint| is_meant(endpoint));
    meant.map(|endpoint| endpoint.address.to_string()).collect::<Vec<_>>().join(", ")
}

/// Formats replicas as "number 2 (10.0.0.2:11211)".
fn replicas_at(replicas: &[usize], health: &Health) -> String {
    let named = replicas.iter().map(|replica| {
        format!("number {} ({})", replica + 1, addresses(health, |endpoint| endpoint.replica == *replica))
    });
    named.collect::<Vec<_>>().join(" and ")
}

const OVERLAPS: &str = "Two replicas of the store lead to the same servers, so their votes are one: give each of the three lists \
                        in store.memcached.replicas its own servers";

const USED_UP: &str = "The store has lost the records of a token key 256 times, and no further mark follows: mend it, then run \
                       `postern issuer key rotate`";

pub(crate) fn way_out(reason: Unknown) -> &'static str {
    match reason {
        Unknown::DiskFull => "Free disk space, or raise the quota: it is tried again every second",
        Unknown::SyncFailed => "Check the disk, then restart the gateway",
        Unknown::Astray => {
            "Make all addresses of the store, or of one replica, lead to the same records, or remove the others"
        }
        Unknown::Unwatched => "Restart the gateway",
        Unknown::Overloaded => {
            "Raise store.memcached.pool_size where commands are pooled, or start another gateway"
        }
        Unknown::Unmarked => {
            "Wait a few seconds for the witnesses of a mark; if it lasts, the store's servers cannot be reached or take no records"
        }
        Unknown::EpochRetired => "Rotate the issuer's keys",
        Unknown::Rejected => "Start the server that is down, or give the full one more memory",
        Unknown::Unavailable(_) | Unknown::TimedOut | Unknown::Garbled => {
            "Check that the store's servers run, and the way to them"
        }
    }
}

/// Formats a count as "1 token key" or "2 token keys".
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
    use postern_spend::memcached::Unfit;

    const WELL: Findings = Findings {
        ready: Ok(()),
        recent: Checks { total: 300, refused: 0 },
        reason: None,
        health: None,
        evicting: Vec::new(),
        filling: Vec::new(),
        skewed: Vec::new(),
    };

    /// Returns the state of a healthy shared store with this many replicas.
    fn shared(replicas: usize) -> Health {
        let endpoint = |replica| EndpointHealth {
            address: format!("10.0.0.{replica}:11211").parse().unwrap(),
            replica,
            connections: 1,
            outstanding: 0,
            capacity: 4096,
            connect_failures: 0,
            rejects: false,
            unfit: None,
            failure: None,
        };
        Health {
            ready: Ok(()),
            torn: 0,
            lacking: 0,
            lacking_at: Vec::new(),
            overlaps: false,
            used_up: false,
            away: Vec::new(),
            voteless: 0,
            closed: 0,
            endpoints: (0..replicas).map(endpoint).collect(),
            remembered: 0,
            round: Round { requested: 120, unclear: 0 },
        }
    }

    fn rejecting(mut health: Health) -> Health {
        health.endpoints[0].rejects = true;
        health
    }

    fn of(health: Health) -> Findings {
        Findings { health: Some(health), ..WELL }
    }

    fn degraded(findings: &Findings) -> String {
        match findings.condition() {
            Condition::Degraded(reasons) => {
                reasons.into_iter().map(|reason| reason.text).collect::<Vec<_>>().join("; ")
            }
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
    fn without_traffic_the_watch_tells() {
        let round = Round { requested: 120, unclear: 40 };
        let idle = Findings { recent: Checks::default(), ..of(Health { round, ..shared(1) }) };
        let text = degraded(&idle);
        assert!(text.starts_with("40 of 120 records cannot be read, so about 33% of the checks"), "{text}");
    }

    #[test]
    fn losses_are_degraded_with_what_follows() {
        assert_eq!(of(shared(1)).condition(), Condition::Ready);
        let text = degraded(&of(Health { torn: 512, ..shared(1) }));
        assert!(text.starts_with("the store has lost records, so 50% of the tokens"), "{text}");
        let text = degraded(&of(Health { closed: 1, ..shared(1) }));
        assert!(text.contains("hash_tag") && text.contains("start it with -M"), "{text}");
        let silent = Health { away: vec![0], voteless: 1, ..shared(1) };
        degraded(&of(silent.clone())); // for one round: `ready` says when it lasts
        let text = not_ready(&of(rejecting(silent)));
        assert!(text.starts_with("the store rejects records"), "{text}");
    }

    #[test]
    fn servers_that_get_no_mark_are_named() {
        let mut health = shared(1);
        health.endpoints[0].unfit = Some(Unfit::Evicts);
        let text = not_ready(&Findings { ready: Err(Unknown::Unmarked), ..of(health) });
        assert!(
            text.contains("10.0.0.0:11211 is a memcached that drops records") && text.ends_with("-M"),
            "{text}"
        );
        let skewed = vec!["the clock of 10.0.0.0:11211 is 2 h ahead of this machine's".to_owned()];
        let text = not_ready(&Findings { ready: Err(Unknown::Unmarked), skewed, ..of(shared(1)) });
        assert!(text.contains("2 h ahead of") && text.ends_with("by NTP"), "{text}");
        let used_up = Health { used_up: true, ..shared(1) };
        let text = not_ready(&Findings { ready: Err(Unknown::Unmarked), ..of(used_up) });
        assert!(text.contains("key rotate"), "{text}");
        let mut health = shared(3);
        health.endpoints[1].unfit = Some(Unfit::Parts);
        let text = not_ready(&Findings { ready: Err(Unknown::Unmarked), ..of(health) });
        assert!(
            text.contains("10.0.0.1:11211 is a router that keeps") && text.contains("hash_tag"),
            "{text}"
        );
    }

    #[test]
    fn a_clock_that_is_wrong_is_named_and_takes_no_mark_away_that_stands() {
        let skewed = vec!["the clock of 10.0.0.1:11211 is 2 h behind this machine's".to_owned()];
        for replicas in [1, 3] {
            let text = degraded(&Findings { skewed: skewed.clone(), ..of(shared(replicas)) });
            assert!(text.starts_with(&skewed[0]) && text.ends_with("by NTP"), "{text}");
            assert!(text.contains("too early or too late there") && !text.contains("mark"), "{text}");
        }
    }

    #[test]
    fn servers_that_drop_records_are_named() {
        let evicting = ["10.0.1.1:11211", "10.0.1.2:11211"].map(str::to_owned).to_vec();
        let text = degraded(&Findings { evicting, ..WELL });
        assert!(text.starts_with("the memcached at 10.0.1.1:11211, 10.0.1.2:11211 drops records"), "{text}");
    }

    #[test]
    fn a_replica_that_is_away_is_degraded() {
        let text = degraded(&of(Health { away: vec![1], ..shared(3) }));
        assert!(
            text.starts_with("of the three replicas of the store number 2 (10.0.0.1:11211) does not"),
            "{text}"
        );
        let filling = vec!["the memcached at a:1 uses 81% of its memory".to_owned()];
        assert!(degraded(&Findings { filling, ..WELL }).starts_with("the memcached at a:1 uses 81%"));
        let text = degraded(&of(Health { lacking: 512, lacking_at: vec![1], ..shared(3) }));
        let named = "for 50% of the tokens the present mark is unknown to replica number 2 (10.0.0.1:11211) of the store";
        assert!(text.starts_with(named), "{text}");
        // A single replica decides nothing.
        let text = degraded(&of(Health { away: vec![0, 2], ..shared(3) }));
        assert!(text.contains("number 1 (10.0.0.0:11211) and number 3 (10.0.0.2:11211) do not"), "{text}");
        assert!(text.contains("checks are refused with 503") && !text.contains("decide"), "{text}");
        degraded(&of(Health { away: vec![0, 2], voteless: 1, ..shared(3) }));
        let two = Health { away: vec![0, 2], voteless: 2, ..shared(3) };
        assert_eq!(not_ready(&of(rejecting(two))), text, "neither takes a record");
        let text = degraded(&of(Health { closed: 1, ..shared(3) }));
        assert!(text.starts_with("1 of the three replicas of the store has lost records"), "{text}");
        let text = degraded(&of(Health { closed: 2, ..shared(3) }));
        assert!(text.starts_with("2 of the three replicas of the store have lost records"), "{text}");
        assert!(way_out(Unknown::Astray).contains("replica"));
        let overlaps = Health { overlaps: true, ..shared(3) };
        let text = not_ready(&Findings { ready: Err(Unknown::Astray), ..of(overlaps) });
        assert!(text.contains("lead to the same servers"), "{text}");
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
