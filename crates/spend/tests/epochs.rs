//! The beginning, move and end of epochs, and what remains.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use postern_spend::{Backend, Embedded, Epoch, Fsync, Spend, SpendStore, StoreError, Unknown};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const EPOCH: Epoch = Epoch { key: TokenKeyId([0xab; 32]), expires: UnixSeconds(100), mark: None };
const LATER: Epoch = Epoch { expires: UnixSeconds(200), ..EPOCH };

/// For how long both clocks have to be past an epoch's end.
const HOUR: u64 = 3600;

fn open(directory: &Path) -> Embedded {
    open_at(directory, 1)
}

fn open_at(directory: &Path, now: u64) -> Embedded {
    Embedded::open(directory, Fsync::Interval(Duration::from_secs(60)), UnixSeconds(now)).unwrap()
}

fn key(number: u8) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, EPOCH.key, Nonce([number; 32]))
}

async fn spend(store: &Embedded, number: u8, epoch: Epoch, now: u64) -> Result<Spend, Unknown> {
    store.spend(&key(number), &epoch, UnixSeconds(now)).await
}

fn file(directory: &Path, kind: &str) -> PathBuf {
    directory.join(format!("{}.{kind}", EPOCH.key.to_hex()))
}

/// Drops what an hour of both clocks from `now` on confirms to be over.
fn drop_after(store: &Embedded, now: u64) -> Result<usize, StoreError> {
    let clock = Instant::now();
    let read = |seconds| store.drop_expired(UnixSeconds(now + seconds), clock + Duration::from_secs(seconds));
    match read(0) {
        Ok(0) => read(HOUR),
        ended => ended,
    }
}

#[tokio::test]
async fn an_expired_epoch_is_dropped_whole_and_leaves_a_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    for number in 0..200 {
        assert_eq!(spend(&store, number, EPOCH, 1).await, Ok(Spend::Admitted));
    }
    assert_eq!(drop_after(&store, 99).unwrap(), 0);
    let full = store.stats();
    assert_eq!((full.records, full.epochs, full.retired), (200, 1, 0));
    assert!(full.memory_bytes >= 200 * 17 && full.file_bytes >= 200 * 20, "{full:?}");

    assert_eq!(drop_after(&store, 100).unwrap(), 1);
    let empty = store.stats();
    assert_eq!((empty.records, empty.epochs, empty.retired, empty.memory_bytes), (0, 0, 1, 0));
    assert!(!file(path, "spent").exists());
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    assert_eq!(drop_after(&store, 1000).unwrap(), 0);

    // Refused now, under a later expiry, with a clock that went back, and after a restart.
    for epoch in [EPOCH, LATER] {
        assert_eq!(spend(&store, 0, epoch, 1).await, Err(Unknown::EpochRetired));
        assert_eq!(store.check(&key(0), &epoch).await, Err(Unknown::EpochRetired));
    }
    drop(store);
    let store = open(path);
    for number in [0, 250] {
        assert_eq!(spend(&store, number, LATER, 1).await, Err(Unknown::EpochRetired));
    }
    assert_eq!(store.stats().retired, 1);
}

#[tokio::test]
async fn an_epoch_that_expired_while_the_store_was_closed_is_refused_and_then_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    let store = open_at(directory.path(), 100);
    let stats = store.stats();
    assert_eq!((stats.epochs, stats.retired, stats.records), (1, 0, 0), "they are not read");
    assert_eq!(spend(&store, 0, EPOCH, 100).await, Err(Unknown::EpochRetired));
    assert_eq!(drop_after(&store, 100).unwrap(), 1);
    assert_eq!(spend(&store, 0, LATER, 100).await, Err(Unknown::EpochRetired));
    assert_eq!(drop_after(&store, 1000).unwrap(), 0, "once");
}

/// A month.
const AHEAD: u64 = 30 * 86_400;

#[tokio::test]
async fn a_clock_that_is_a_month_ahead_for_some_minutes_drops_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (store, clock) = (open(directory.path()), Instant::now());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    for minute in 0..10 {
        let read =
            store.drop_expired(UnixSeconds(AHEAD + 60 * minute), clock + Duration::from_secs(60 * minute));
        assert_eq!(read.unwrap(), 0);
    }
    // Two readings an hour apart, of a clock that was right in between.
    for (wall, hours) in [(50, 1), (AHEAD, 2)] {
        let monotonic = clock + Duration::from_secs(HOUR * hours);
        assert_eq!(store.drop_expired(UnixSeconds(wall), monotonic).unwrap(), 0);
    }
    assert_eq!(spend(&store, 0, EPOCH, 50).await, Ok(Spend::AlreadySpent));
    assert_eq!(spend(&store, 1, EPOCH, 50).await, Ok(Spend::Admitted));
}

/// A machine that boots with a wrong clock.
#[tokio::test]
async fn a_store_that_is_opened_by_a_clock_ahead_has_its_records_when_the_clock_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    let store = open_at(directory.path(), AHEAD);
    assert_eq!(spend(&store, 0, EPOCH, AHEAD).await, Err(Unknown::EpochRetired));
    assert_eq!(store.drop_expired(UnixSeconds(AHEAD), Instant::now()).unwrap(), 0);
    assert_eq!(spend(&store, 0, EPOCH, 2).await, Ok(Spend::AlreadySpent));
    assert_eq!(spend(&store, 1, EPOCH, 2).await, Ok(Spend::Admitted));
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.drop_expired(UnixSeconds(2), Instant::now()).unwrap(), 0);
    assert_eq!(store.stats().records, 2);
    assert_eq!(spend(&store, 1, EPOCH, 2).await, Ok(Spend::AlreadySpent));
}

/// Each process confirms for itself: a file stays, and refuses, until one process lives for an hour.
#[tokio::test]
async fn a_process_that_restarts_often_keeps_the_records() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    for start in 0..20 {
        let began = AHEAD + start * 1800;
        let (store, clock) = (open_at(directory.path(), began), Instant::now());
        for seconds in [0, 1740] {
            let read = store.drop_expired(UnixSeconds(began + seconds), clock + Duration::from_secs(seconds));
            assert_eq!(read.unwrap(), 0);
        }
        assert_eq!(spend(&store, 1, EPOCH, began).await, Err(Unknown::EpochRetired));
        assert!(file(directory.path(), "spent").exists());
    }
    assert_eq!(drop_after(&open_at(directory.path(), AHEAD), AHEAD).unwrap(), 1);
}

#[tokio::test]
async fn a_later_expiry_lasts_over_restarts_and_an_earlier_one_gives_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    // Several times, so that each of the two headers is rewritten.
    for expires in [150, 160, 170, 200] {
        let epoch = Epoch { expires: UnixSeconds(expires), ..EPOCH };
        assert_eq!(spend(&store, 0, epoch, 1).await, Ok(Spend::AlreadySpent));
    }
    // A caller with the old expiry is refused from then on, but the records stay.
    assert_eq!(spend(&store, 1, EPOCH, 100).await, Err(Unknown::EpochRetired));
    assert_eq!(drop_after(&store, 199).unwrap(), 0);
    drop(store);
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, LATER, 199).await, Ok(Spend::AlreadySpent));
    assert_eq!(drop_after(&store, 200).unwrap(), 1);
}

/// Expired but not dropped yet: the records are there, so a later expiry may still take them on.
#[tokio::test]
async fn an_epoch_may_be_extended_until_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    assert_eq!(spend(&store, 0, EPOCH, 150).await, Err(Unknown::EpochRetired));
    assert_eq!(spend(&store, 0, LATER, 150).await, Ok(Spend::AlreadySpent));
    assert_eq!(spend(&store, 1, LATER, 150).await, Ok(Spend::Admitted));
}

/// The steps of dropping an epoch, cut after the first: the name has changed, the records are still inside.
#[tokio::test]
async fn a_crash_in_the_middle_of_dropping_is_finished_at_opening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    fs::rename(file(path, "spent"), file(path, "retired")).unwrap();
    let store = open(path);
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    assert_eq!(spend(&store, 0, LATER, 1).await, Err(Unknown::EpochRetired));
}

/// Records restored next to the tombstone do not restore the key.
#[tokio::test]
async fn a_tombstone_outweighs_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    fs::write(file(path, "retired"), "").unwrap();
    let store = open(path);
    assert_eq!(spend(&store, 1, LATER, 1).await, Err(Unknown::EpochRetired));
    assert!(!file(path, "spent").exists());
}

/// A file of the new epoch's name appears while the store is open (a backup brought back too late): not overwritten.
#[tokio::test]
async fn a_file_that_appears_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    fs::write(file(directory.path(), "spent"), "records of old").unwrap();
    assert!(matches!(spend(&store, 0, EPOCH, 1).await, Err(Unknown::Unavailable(_))));
    assert_eq!(fs::read(file(directory.path(), "spent")).unwrap(), b"records of old");
}

/// The disk refused after the name had changed: the next call finishes what the first began.
#[tokio::test]
async fn dropping_an_epoch_resumes_where_it_was_interrupted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    fs::rename(file(path, "spent"), file(path, "retired")).unwrap();
    assert_eq!(drop_after(&store, 100).unwrap(), 1);
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    assert_eq!(spend(&store, 0, LATER, 1).await, Err(Unknown::EpochRetired));
    assert_eq!(drop_after(&store, 100).unwrap(), 0);
}

/// One epoch that the disk keeps from being dropped is refused from the first try on, is tried again, and holds up no
/// other.
#[tokio::test]
async fn an_epoch_that_the_disk_will_not_drop_is_refused_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    let other = Epoch { key: TokenKeyId([0xcd; 32]), ..EPOCH };
    for epoch in [EPOCH, other] {
        assert_eq!(store.spend(&key(0), &epoch, UnixSeconds(1)).await, Ok(Spend::Admitted));
    }
    fs::create_dir(file(path, "retired")).unwrap(); // no file can be renamed to this
    for _ in 0..2 {
        assert!(drop_after(&store, 100).is_err());
        assert!(!path.join(format!("{}.spent", other.key.to_hex())).exists());
        for epoch in [LATER, Epoch { expires: UnixSeconds(200), ..other }] {
            assert_eq!(store.spend(&key(1), &epoch, UnixSeconds(1)).await, Err(Unknown::EpochRetired));
        }
    }
    fs::remove_dir(file(path, "retired")).unwrap();
    assert_eq!(drop_after(&store, 100).unwrap(), 1);
    assert!(!file(path, "spent").exists());
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    drop(store);
    assert_eq!(spend(&open(path), 0, LATER, 1).await, Err(Unknown::EpochRetired));
}

/// Records that are gone from under the store are no reason to take the key's tokens again.
#[tokio::test]
async fn an_epoch_whose_file_is_gone_gets_its_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    fs::remove_file(file(path, "spent")).unwrap();
    assert_eq!(drop_after(&store, 100).unwrap(), 1);
    drop(store);
    assert_eq!(spend(&open(path), 0, LATER, 1).await, Err(Unknown::EpochRetired));
}

/// Only a records file that is missing was turned into its tombstone before.
#[tokio::test]
async fn a_tombstone_next_to_something_that_cannot_be_renamed_is_not_enough() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    fs::remove_file(file(path, "spent")).unwrap();
    fs::create_dir(file(path, "spent")).unwrap();
    fs::write(file(path, "retired"), "").unwrap();
    assert!(drop_after(&store, 100).is_err());
    assert_eq!(spend(&store, 0, LATER, 1).await, Err(Unknown::EpochRetired));
}

/// The gateway takes a key that the store has retired off its offer, and asks by way of the store that was chosen.
#[tokio::test]
async fn a_retired_key_is_reported_whatever_the_directory_lists() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(open(directory.path()));
    let (backend, clock) = (Backend::Embedded(Arc::clone(&store)), Instant::now());
    let other = Epoch { key: TokenKeyId([0xcd; 32]), ..LATER };
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    assert!(!backend.has_retired(EPOCH.key, UnixSeconds(1)));
    assert_eq!(backend.drop_expired(UnixSeconds(100), clock).unwrap(), 0);
    let confirmed = (UnixSeconds(100 + HOUR), clock + Duration::from_secs(HOUR));
    assert_eq!(backend.drop_expired(confirmed.0, confirmed.1).unwrap(), 1);
    assert!(backend.has_retired(LATER.key, UnixSeconds(1)));
    assert!(!backend.has_retired(other.key, UnixSeconds(1)));
}
