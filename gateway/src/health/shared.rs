//! What a shared store lacks, in sentences: its replicas, the servers behind their addresses, and the mark on offer; and the
//! remedy for each reason that a store has for no verdict.

use crate::gate::Reason;
use postern_spend::Unknown;
use postern_spend::memcached::{BUCKETS, EndpointHealth, Health, Round};

/// Returns the remedy for servers on which no mark is planted because they evict records or split buckets; `None` without such
/// servers.
pub(super) fn unfit(health: &Health) -> Option<String> {
    let reason = health.endpoints.iter().find_map(|endpoint| endpoint.unfit)?;
    let addresses = addresses(health, |endpoint| endpoint.unfit == Some(reason));
    Some(format!("{addresses} {}", reason.explanation()))
}

/// Returns a sentence for each problem of a shared store that still serves.
pub(super) fn of_shared(health: &Health) -> Vec<Reason> {
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
pub(super) fn of_away(health: &Health) -> String {
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

/// Returns the remedy.
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

pub(super) fn percent(part: u64, whole: u64) -> String {
    match (part * 100).checked_div(whole) {
        None | Some(0) => "less than 1%".to_owned(),
        Some(share) => format!("{share}%"),
    }
}
