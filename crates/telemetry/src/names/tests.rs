//! The registry holds to its own rules.

use super::*;
use std::collections::HashSet;

#[test]
fn no_name_is_used_twice() {
    let names: HashSet<_> = ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), ALL.len());
}

/// <https://prometheus.io/docs/practices/naming/>
#[test]
fn names_follow_prometheus() {
    for Metric { name, kind, unit, help, labels } in ALL {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(name.starts_with("postern_") && plain(name), "{name}");
        assert_eq!(name.ends_with("_total"), matches!(kind, Kind::Counter), "{name}");
        let base = name.trim_end_matches("_total");
        assert_eq!(base.ends_with("_seconds"), *unit == Some(Unit::Seconds), "{name}");
        assert_eq!(base.ends_with("_bytes"), *unit == Some(Unit::Bytes), "{name}");
        assert!(help.ends_with('.'), "{name}");
        assert!(labels.iter().all(|label| plain(label) && *label != "le"), "{name}");
        if let Kind::Histogram(buckets) = kind {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{name}");
        }
    }
}

#[test]
fn forty_milliseconds_fall_between_two_buckets_of_their_own() {
    let below = CHECK_BUCKETS.iter().filter(|bound| **bound < 0.04).max_by(|a, b| a.total_cmp(b)).unwrap();
    let above = CHECK_BUCKETS.iter().filter(|bound| **bound > 0.04).min_by(|a, b| a.total_cmp(b)).unwrap();
    assert!(*below >= 0.035 && *above <= 0.045, "{below} {above}");
    assert_eq!(CHECK_BUCKETS.first(), Some(&0.000_01));
    assert_eq!(CHECK_BUCKETS.last(), Some(&1.0));
}

#[test]
fn label_values_are_distinct_and_plain() {
    fn check(values: &[&str]) {
        assert_eq!(values.iter().collect::<HashSet<_>>().len(), values.len(), "{values:?}");
        assert!(values.iter().all(|value| value.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }
    macro_rules! each { ($($label:ident)+) => { $(check(&$label::ALL.iter().map(|v| v.as_str()).collect::<Vec<_>>());)+ } }
    each!(CheckStage CheckResult StoreCommand StoreEnded Outcome Direction TunnelEnd IssuerOutcome AgentOutcome);
    each!(UnknownReason KeyPhase LinkKind TraceKept SpanEnded LogLevel);
}
