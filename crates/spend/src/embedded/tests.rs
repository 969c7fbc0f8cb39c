//! What only an insider can stage: a disk whose syncs fail.

use super::*;
use postern_token::{Nonce, TokenType};
use std::fs::OpenOptions;
use std::time::{Duration, Instant};

const EPOCH: Epoch = Epoch { key: TokenKeyId([1; 32]), expires: UnixSeconds(1000), mark: None };
const NOW: UnixSeconds = UnixSeconds(500);

fn key(number: u8) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, EPOCH.key, Nonce([number; 32]))
}

/// A store with an epoch whose file takes every write and fails every sync, as `/dev/null` does (EINVAL).
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
    assert_eq!(store.ready().await, Err(Unknown::SyncFailed));
    // Neither the key itself, nor others, nor other epochs whose own files are well.
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
    while store.ready().await.is_ok() {
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

/// A spend that is dropped while it waits for the sync leaves its key spent and no caller waiting.
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
