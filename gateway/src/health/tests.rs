//! The conditions of a store, and their sentences.

use super::*;
use postern_spend::memcached::{EndpointHealth, Round, Unfit};

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
    assert!(text.contains("10.0.0.1:11211 is a router that keeps") && text.contains("hash_tag"), "{text}");
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
    let named =
        "for 50% of the tokens the present mark is unknown to replica number 2 (10.0.0.1:11211) of the store";
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
