//! Tests of the labels' order and the reasons.

use super::*;

#[test]
fn labels_stand_at_their_own_index() {
    assert!(Outcome::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(CheckStage::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(TunnelEnd::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(CheckResult::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
}

#[test]
fn each_reason_of_the_store_has_a_counter() {
    for unknown in [
        Unknown::Unavailable(std::io::ErrorKind::Other),
        Unknown::TimedOut,
        Unknown::DiskFull,
        Unknown::SyncFailed,
        Unknown::Overloaded,
        Unknown::Rejected,
        Unknown::Garbled,
        Unknown::Astray,
        Unknown::Unmarked,
        Unknown::Unwatched,
        Unknown::EpochRetired,
    ] {
        assert!(Unknown::REASONS.contains(&unknown.reason()));
    }
}
