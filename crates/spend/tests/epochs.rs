//! How epochs begin, move and end, and what stays behind.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use postern_spend::{Embedded, Epoch, Fsync, Spend, SpendStore, Unknown};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EPOCH: Epoch = Epoch { key: TokenKeyId([0xab; 32]), expires: UnixSeconds(100), mark: None };
const LATER: Epoch = Epoch { expires: UnixSeconds(200), ..EPOCH };

fn open(directory: &Path, now: u64) -> Embedded {
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

#[tokio::test]
async fn an_expired_epoch_is_dropped_whole_and_leaves_a_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path, 1);
    for number in 0..200 {
        assert_eq!(spend(&store, number, EPOCH, 1).await, Ok(Spend::Admitted));
    }
    assert_eq!(store.drop_expired(UnixSeconds(99)).unwrap(), 0);
    let full = store.stats();
    assert_eq!((full.records, full.epochs, full.retired), (200, 1, 0));

    assert_eq!(store.drop_expired(UnixSeconds(100)).unwrap(), 1);
    let empty = store.stats();
    assert_eq!((empty.records, empty.epochs, empty.retired, empty.memory_bytes), (0, 0, 1, 0));
    assert!(!file(path, "spent").exists());
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    assert_eq!(store.drop_expired(UnixSeconds(1000)).unwrap(), 0);

    // Refused now, under a later expiry, with a clock that went back, and after a restart.
    for epoch in [EPOCH, LATER] {
        assert_eq!(spend(&store, 0, epoch, 1).await, Err(Unknown::EpochRetired));
        assert_eq!(store.check(&key(0), &epoch).await, Err(Unknown::EpochRetired));
    }
    drop(store);
    let store = open(path, 1);
    for number in [0, 250] {
        assert_eq!(spend(&store, number, LATER, 1).await, Err(Unknown::EpochRetired));
    }
    assert_eq!(store.stats().retired, 1);
}

#[tokio::test]
async fn an_epoch_that_expired_while_the_store_was_closed_is_dropped_at_opening() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    let store = open(directory.path(), 100);
    assert_eq!((store.stats().epochs, store.stats().retired), (0, 1));
    assert_eq!(spend(&store, 0, LATER, 100).await, Err(Unknown::EpochRetired));
}

#[tokio::test]
async fn a_later_expiry_lasts_over_restarts_and_an_earlier_one_gives_nothing_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    // Several times, so that each of the two headers is rewritten.
    for expires in [150, 160, 170, 200] {
        let epoch = Epoch { expires: UnixSeconds(expires), ..EPOCH };
        assert_eq!(spend(&store, 0, epoch, 1).await, Ok(Spend::AlreadySpent));
    }
    // A caller with the old expiry is refused from then on, but the records stay.
    assert_eq!(spend(&store, 1, EPOCH, 100).await, Err(Unknown::EpochRetired));
    assert_eq!(store.drop_expired(UnixSeconds(199)).unwrap(), 0);
    drop(store);
    let store = open(directory.path(), 199);
    assert_eq!(spend(&store, 0, LATER, 199).await, Ok(Spend::AlreadySpent));
    assert_eq!(store.drop_expired(UnixSeconds(200)).unwrap(), 1);
}

/// Expired but not dropped yet: the records are there, so a later expiry may still take them on.
#[tokio::test]
async fn an_epoch_may_be_extended_until_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1);
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
    let store = open(path, 1);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    fs::rename(file(path, "spent"), file(path, "retired")).unwrap();
    let store = open(path, 1);
    assert_eq!(fs::metadata(file(path, "retired")).unwrap().len(), 0);
    assert_eq!(spend(&store, 0, LATER, 1).await, Err(Unknown::EpochRetired));
}

/// Records brought back beside the tombstone do not bring the key back.
#[tokio::test]
async fn a_tombstone_outweighs_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let store = open(path, 1);
    assert_eq!(spend(&store, 0, EPOCH, 1).await, Ok(Spend::Admitted));
    drop(store);
    fs::write(file(path, "retired"), "").unwrap();
    let store = open(path, 1);
    assert_eq!(spend(&store, 1, LATER, 1).await, Err(Unknown::EpochRetired));
    assert!(!file(path, "spent").exists());
}

/// A file of the new epoch's name appears while the store is open (a backup brought back too late): not overwritten.
#[tokio::test]
async fn a_file_that_appears_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1);
    fs::write(file(directory.path(), "spent"), "records of old").unwrap();
    assert!(matches!(spend(&store, 0, EPOCH, 1).await, Err(Unknown::Unavailable(_))));
    assert_eq!(fs::read(file(directory.path(), "spent")).unwrap(), b"records of old");
}
