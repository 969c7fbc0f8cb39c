//! The labels, and what the recording of a check costs.

use super::*;

#[test]
fn labels_stand_at_their_own_index() {
    assert!(Outcome::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(CheckStage::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(TunnelEnd::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(CheckResult::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
    assert!(UnknownReason::ALL.iter().enumerate().all(|(index, &label)| index == label as usize));
}

#[test]
fn a_reason_is_called_the_same_in_the_store_and_in_the_metrics() {
    for unknown in [
        Unknown::Unavailable(std::io::ErrorKind::Other),
        Unknown::TimedOut,
        Unknown::DiskFull,
        Unknown::SyncFailed,
        Unknown::Overloaded,
        Unknown::Rejected,
        Unknown::Garbled,
        Unknown::Unproven,
        Unknown::Unmarked,
        Unknown::Unwatched,
        Unknown::EpochRetired,
    ] {
        assert_eq!(reason(unknown).as_str(), unknown.reason());
    }
}
