//! Tests that need private access: a disk whose syncs or writes fail.

use super::*;
use crate::{Backend, Store};
use postern_token::{Nonce, TokenType};
use std::fs::{self, File, OpenOptions};
use std::time::{Duration, Instant};

const EPOCH: Epoch = Epoch { key: TokenKeyId([1; 32]), expires: UnixSeconds(1000), mark: None };
const NOW: UnixSeconds = UnixSeconds(500);

fn key(number: u8) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, EPOCH.key, Nonce([number; 32]))
}

/// Opens a store with an epoch whose file accepts every write and fails every sync, as `/dev/null` does (EINVAL).
fn on_a_bad_disk(fsync: Fsync) -> (tempfile::TempDir, Embedded) {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path(), fsync, NOW).unwrap();
    let file = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    store.epochs.write().live.push(Arc::new(EpochLog::new(&EPOCH, file, None)));
    (directory, store)
}

#[tokio::test]
async fn with_fsync_always_a_failed_sync_is_never_an_admission() {
    let (_directory, store) = on_a_bad_disk(Fsync::Always);
    assert_eq!(store.spend(&key(1), &EPOCH, NOW).await, Err(Unknown::SyncFailed));
    assert_eq!(store.serving(), Err(Unknown::SyncFailed));
    // Refused: the key itself, other keys, and other epochs with intact files.
    let other = Epoch { key: TokenKeyId([2; 32]), ..EPOCH };
    for (key, epoch) in [(key(1), EPOCH), (key(2), EPOCH), (key(3), other)] {
        assert_eq!(store.spend(&key, &epoch, NOW).await, Err(Unknown::SyncFailed));
    }
    assert_eq!(store.check(&key(1), &EPOCH).await, Ok(Hint::Spent));
    assert_eq!(store.check(&key(2), &EPOCH).await, Err(Unknown::SyncFailed));
}

#[tokio::test]
async fn with_an_interval_a_failed_sync_stops_admissions_once_noticed() {
    let (_directory, store) = on_a_bad_disk(Fsync::Interval(Duration::from_millis(1)));
    // The first spend is answered before the disk is synced, or just after. Then the sync thread detects the failure.
    _ = store.spend(&key(1), &EPOCH, NOW).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.serving().is_ok() {
        assert!(Instant::now() < deadline, "the failed sync was not noticed");
        tokio::task::yield_now().await;
    }
    assert_eq!(store.spend(&key(2), &EPOCH, NOW).await, Err(Unknown::SyncFailed));
}

#[tokio::test]
async fn a_sync_that_fails_while_an_expiry_moves_is_not_forgotten() {
    let (_directory, store) = on_a_bad_disk(Fsync::Interval(Duration::from_secs(3600)));
    let later = Epoch { expires: UnixSeconds(2000), ..EPOCH };
    assert!(store.spend(&key(1), &later, NOW).await.is_err());
    assert_eq!(store.spend(&key(2), &EPOCH, NOW).await, Err(Unknown::SyncFailed));
}

/// A spend dropped while it waits for the sync leaves its key spent, and the next spend does not wait for it.
#[tokio::test]
async fn a_spend_dropped_while_it_waits_stays_spent() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path(), Fsync::Always, NOW).unwrap();
    assert_eq!(store.spend(&key(0), &EPOCH, NOW).await, Ok(Spend::Admitted));
    for number in 1..=100 {
        let key = key(number);
        let mut spend = Box::pin(store.spend(&key, &EPOCH, NOW));
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(spend.as_mut().poll(context))).await;
        drop(spend);
        let again = store.spend(&key, &EPOCH, NOW).await;
        assert_eq!(again, Ok(Spend::AlreadySpent), "{number}: {first:?}");
    }
    assert_eq!(store.spend(&key(101), &EPOCH, NOW).await, Ok(Spend::Admitted));
}

/// Replaces the log of [`EPOCH`] with an empty one on this file.
fn put_on(store: &Embedded, file: File) {
    store.epochs.write().live = vec![Arc::new(EpochLog::new(&EPOCH, file, None))];
}

/// Opens a file whose writes fail, as on a full disk.
fn full() -> File {
    OpenOptions::new().read(true).write(true).open("/dev/full").unwrap()
}

/// The first failure wakes the thread that retries: no sync is due for an hour, or until a spend requests one.
#[tokio::test]
async fn a_store_that_cannot_write_refuses_and_serves_again_when_it_can() {
    for fsync in [Fsync::Interval(Duration::from_secs(3600)), Fsync::Always] {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(directory.path(), fsync, NOW).unwrap());
        let (backend, chosen) = (Backend::Embedded(Arc::clone(&store)), Store::Embedded(Arc::clone(&store)));
        assert_eq!((backend.ready(), chosen.serving()), (Ok(()), Ok(())));
        put_on(&store, full());
        assert_eq!(store.spend(&key(1), &EPOCH, NOW).await, Err(Unknown::DiskFull));
        assert_eq!(store.check(&key(1), &EPOCH).await, Ok(Hint::Spent), "the key stays spent");
        let no_room = Err(Unknown::DiskFull);
        assert_eq!((backend.ready(), chosen.serving()), (no_room, no_room));
        // The thread, woken by the failure, syncs only written records: there are none, and `/dev/full` fails every sync.
        store.epochs.read().live[0].sync().unwrap();
        put_on(&store, tempfile::tempfile().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while store.serving().is_err() {
            assert!(Instant::now() < deadline, "no trial write was made");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(store.spend(&key(2), &EPOCH, NOW).await, Ok(Spend::Admitted));
    }
}

/// A trial write succeeds only if a record could be written, to the files and to the directory.
#[tokio::test]
async fn a_trial_write_tests_the_directory_and_each_file_that_failed() {
    let (directory, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = directory.path().join("store");
    let store = Embedded::open(&path, Fsync::Interval(Duration::from_secs(3600)), NOW).unwrap();
    let disk = Disk { epochs: Arc::clone(&store.epochs), directory: Arc::clone(&store.directory) };
    put_on(&store, full());
    disk.try_to_write().unwrap(); // no write to that file has failed yet
    assert_eq!(store.spend(&key(1), &EPOCH, NOW).await, Err(Unknown::DiskFull));
    let before = store.stats().file_bytes;
    let reserved = [(); 2].map(|()| {
        assert_eq!(disk.try_to_write().unwrap_err().unknown(), Unknown::DiskFull);
        store.stats().file_bytes - before
    });
    assert!(reserved[0] >= 2 * 4096 && reserved[0].is_multiple_of(20), "{reserved:?}");
    assert_eq!(reserved[1], reserved[0], "one place, however often it is tried");
    put_on(&store, tempfile::tempfile().unwrap());
    disk.try_to_write().unwrap();
    assert!(!path.join(format!("{}.new", "0".repeat(64))).exists(), "the trial file is removed");
    fs::rename(&path, away.path().join("store")).unwrap();
    disk.try_to_write().unwrap_err();
}

/// Returns the minutes at which the epoch is confirmed to be over, for readings (wall, monotonic, over) in minutes.
fn confirmed(readings: &[(u64, u64, bool)]) -> Vec<u64> {
    let (mut endings, began) = (Endings::default(), Instant::now());
    let minutes = |minutes: &u64| Duration::from_secs(minutes * 60);
    let over = readings.iter().filter_map(|(wall, monotonic, over)| {
        let now = Reading {
            wall: UnixSeconds(0).saturating_add(minutes(wall)),
            monotonic: began + minutes(monotonic),
        };
        let keys = if *over { vec![EPOCH.key] } else { Vec::new() };
        (!endings.confirmed(&keys, now).is_empty()).then_some(*monotonic)
    });
    over.collect()
}

#[test]
fn an_epoch_is_over_after_an_hour_by_both_clocks() {
    let steady: Vec<_> = (0..=61).map(|minute| (500 + minute, minute, true)).collect();
    assert_eq!(confirmed(&steady), [60, 61]);
    // No reading in between.
    assert_eq!(confirmed(&[(500, 0, true), (561, 61, true)]), [61]);
    assert_eq!(confirmed(&[(500, 0, true), (559, 59, true)]), [0_u64; 0]);
}

#[test]
fn a_clock_that_jumps_or_comes_back_starts_over() {
    // A month ahead for some minutes.
    assert_eq!(
        confirmed(&[(43_200, 0, true), (43_205, 5, true), (10, 6, false), (90, 86, true)]),
        [0_u64; 0]
    );
    // Set back and ahead again between two readings; or suspended, so that the monotonic clock stopped.
    assert_eq!(confirmed(&[(500, 0, true), (900, 61, true), (959, 120, true), (960, 121, true)]), [121]);
    assert_eq!(confirmed(&[(500, 0, true), (900, 1, true), (961, 62, true)]), [62]);
    assert_eq!(confirmed(&[(500, 0, true), (499, 61, true)]), [0_u64; 0]);
}
