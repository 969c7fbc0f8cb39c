//! Odd input: whatever a disk, a crash or a person may leave in the directory. The store reads every record that is
//! there, or does not open; it never starts with less than it could have read.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use postern_spend::{Embedded, Epoch, Fsync, Spend, SpendStore, StoreError, Unknown};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const EPOCH: Epoch = Epoch { key: TokenKeyId([0x5e; 32]), expires: UnixSeconds(100), mark: None };
const NOW: UnixSeconds = UnixSeconds(1);
const KEYS: u8 = 50;
/// The offset of the first record, and a record's length: docs/how-it-works/spend-contract.md.
const RECORDS: usize = 8192;
const RECORD: usize = 20;

fn open(directory: &Path) -> Result<Embedded, StoreError> {
    open_at(directory, NOW)
}

fn open_at(directory: &Path, now: UnixSeconds) -> Result<Embedded, StoreError> {
    Embedded::open(directory, Fsync::default(), now)
}

fn key(number: u8) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, EPOCH.key, Nonce([number; 32]))
}

/// A closed store with fifty spent keys, and its records file.
async fn filled() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    for number in 0..KEYS {
        assert_eq!(store.spend(&key(number), &EPOCH, NOW).await, Ok(Spend::Admitted));
    }
    let file = directory.path().join(format!("{}.spent", EPOCH.key.to_hex()));
    (directory, file)
}

/// The keys that may be spent again after the file was changed to `bytes`, and the store.
async fn lost(directory: &Path, file: &Path, bytes: &[u8]) -> (Vec<u8>, Embedded) {
    fs::write(file, bytes).unwrap();
    let store = open(directory).unwrap();
    let mut lost = Vec::new();
    for number in 0..KEYS {
        if store.spend(&key(number), &EPOCH, NOW).await == Ok(Spend::Admitted) {
            lost.push(number);
        }
    }
    (lost, store)
}

#[tokio::test]
async fn a_file_cut_within_its_headers_is_refused_and_left_alone() {
    let (directory, file) = filled().await;
    let whole = fs::read(&file).unwrap();
    for len in [0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4159, 4160, 8191] {
        fs::write(&file, &whole[..len]).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(error.to_string().contains("cannot be trusted"), "{len}: {error}");
        assert!(error.to_string().contains(".retired"), "it names the next step: {error}");
        assert_eq!(fs::read(&file).unwrap(), whole[..len]);
    }
}

#[tokio::test]
async fn one_broken_header_costs_nothing_and_two_are_refused() {
    let (directory, file) = filled().await;
    let whole = fs::read(&file).unwrap();
    for byte in (0..64).step_by(3) {
        let mut bytes = whole.clone();
        for header in [0, 4096] {
            bytes = whole.clone();
            bytes[header + byte] ^= 0x80;
            if byte == 9 {
                continue; // makes the version a later one: see below
            }
            let (lost, store) = lost(directory.path(), &file, &bytes).await;
            assert_eq!(lost, [0_u8; 0], "header {header}, byte {byte}");
            drop(store);
        }
        bytes[byte] ^= 0x80;
        fs::write(&file, &bytes).unwrap();
        assert!(open(directory.path()).is_err(), "byte {byte} of both headers");
    }
}

/// Nothing of it can be admitted any more, so its damage is no reason to keep a gateway from starting.
#[tokio::test]
async fn the_records_of_an_epoch_that_is_over_are_not_read() {
    let (directory, file) = filled().await;
    let bytes = [&fs::read(&file).unwrap()[..RECORDS], &[0x5a; 2000 * RECORD]].concat();
    fs::write(&file, &bytes).unwrap();
    assert!(open_at(directory.path(), UnixSeconds(99)).is_err());
    let (store, clock) = (open_at(directory.path(), EPOCH.expires).unwrap(), Instant::now());
    assert_eq!(store.spend(&key(0), &EPOCH, EPOCH.expires).await, Err(Unknown::EpochRetired));
    assert_eq!(store.drop_expired(EPOCH.expires, clock).unwrap(), 0);
    assert_eq!(fs::read(&file).unwrap(), bytes, "the clock may be wrong");
    let hour = Duration::from_secs(3600);
    assert_eq!(store.drop_expired(EPOCH.expires.saturating_add(hour), clock + hour).unwrap(), 1);
    assert!(store.has_retired(EPOCH.key) && !file.exists());
    drop(store);
    assert!(open(directory.path()).unwrap().has_retired(EPOCH.key));
}

/// The clock was ahead at the start, and what it kept from being read cannot be read now.
#[tokio::test]
async fn records_that_cannot_be_read_late_are_refused_and_stay() {
    let (directory, file) = filled().await;
    let bytes = [&fs::read(&file).unwrap()[..RECORDS], &[0x5a; 2000 * RECORD]].concat();
    fs::write(&file, &bytes).unwrap();
    let store = open_at(directory.path(), UnixSeconds(1_000_000)).unwrap();
    for _ in 0..2 {
        assert_eq!(store.spend(&key(KEYS), &EPOCH, NOW).await, Err(Unknown::EpochRetired));
    }
    assert!(store.has_retired(EPOCH.key), "no token of it is requested");
    let hour = Duration::from_secs(3600);
    let clock = Instant::now();
    assert_eq!(store.drop_expired(NOW, clock).unwrap(), 0);
    assert_eq!(store.drop_expired(NOW.saturating_add(hour), clock + hour).unwrap(), 0);
    assert_eq!(store.serving(), Ok(()), "other keys are served");
    assert_eq!(fs::read(&file).unwrap(), bytes);
    drop(store);
    assert!(open(directory.path()).is_err());
}

#[tokio::test]
async fn a_later_version_is_refused_by_name() {
    let (directory, file) = filled().await;
    for header in [0, 4096] {
        let mut bytes = fs::read(&file).unwrap();
        bytes[header + 8] = 7;
        fs::write(&file, bytes).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(error.to_string().contains("has version 7"), "{error}");
    }
}

#[tokio::test]
async fn a_file_under_another_keys_name_is_refused() {
    let (directory, file) = filled().await;
    fs::rename(&file, directory.path().join(format!("{}.spent", "11".repeat(32)))).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("another key"), "{error}");
}

#[tokio::test]
async fn a_damaged_record_is_counted_and_costs_no_other() {
    let (directory, file) = filled().await;
    let whole = fs::read(&file).unwrap();
    for byte in 0..RECORD {
        let mut bytes = whole.clone();
        bytes[RECORDS + 17 * RECORD + byte] ^= 1;
        let (lost, store) = lost(directory.path(), &file, &bytes).await;
        assert_eq!(store.stats().damaged, 1);
        // With its checksum alone damaged the key is still known, and refused.
        assert_eq!(lost, if byte < 16 { vec![17] } else { vec![] }, "byte {byte}");
    }
}

#[tokio::test]
async fn a_file_cut_within_a_record_loses_that_record_and_stays_in_step() {
    let (directory, file) = filled().await;
    let whole = fs::read(&file).unwrap();
    for cut in 0..=RECORD {
        let (lost, store) = lost(directory.path(), &file, &whole[..whole.len() - cut]).await;
        // Sixteen bytes of a record are its key.
        assert_eq!(lost, if cut > 4 { vec![KEYS - 1] } else { vec![] }, "{cut} bytes cut");
        assert_eq!(store.stats().damaged, u64::from(cut % RECORD != 0));
        drop(store);
        // Spends after the cut are found again: their records are in step.
        let store = open(directory.path()).unwrap();
        for number in 0..KEYS {
            assert_eq!(
                store.spend(&key(number), &EPOCH, NOW).await,
                Ok(Spend::AlreadySpent),
                "{cut} bytes cut"
            );
        }
    }
}

#[tokio::test]
async fn holes_are_counted_and_cost_no_other() {
    let (directory, file) = filled().await;
    let mut bytes = fs::read(&file).unwrap();
    bytes[RECORDS + 10 * RECORD..RECORDS + 13 * RECORD].fill(0);
    let (lost, store) = lost(directory.path(), &file, &bytes).await;
    assert_eq!((lost, store.stats().holes), (vec![10, 11, 12], 3));
}

#[tokio::test]
async fn a_file_that_is_mostly_no_records_is_refused() {
    let (directory, file) = filled().await;
    let mut bytes = fs::read(&file).unwrap();
    bytes.resize(RECORDS + 3000 * RECORD, 0xee);
    fs::write(&file, bytes).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("2950 records are damaged and 50 whole"), "{error}");
}

#[tokio::test]
async fn what_does_not_belong_in_the_directory_is_not_ignored() {
    let (directory, file) = filled().await;
    let id = EPOCH.key.to_hex();
    for name in [
        "notes.txt",
        "lock.old",
        &format!("{id}.spent.bak"),
        &format!("{}.spent", id.to_uppercase()),
        &id,
        "x.new",
    ] {
        let stray = directory.path().join(name);
        fs::copy(&file, &stray).unwrap();
        let error = open(directory.path()).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("{} does not belong", stray.display())),
            "{name}: {error}"
        );
        fs::remove_file(stray).unwrap();
    }
    let link = directory.path().join(format!("{}.spent", "22".repeat(32)));
    symlink(&file, &link).unwrap();
    assert!(open(directory.path()).unwrap_err().to_string().contains("does not belong"));
    fs::remove_file(link).unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    open(directory.path()).unwrap();
}

/// A crash between the steps that create an epoch: there is a `.new` file, whole or not, and nothing was spent from it.
#[tokio::test]
async fn an_epoch_whose_creation_was_cut_short_begins_again() {
    let directory = tempfile::tempdir().unwrap();
    let new = directory.path().join(format!("{}.new", EPOCH.key.to_hex()));
    fs::write(&new, "half a hea").unwrap();
    let store = open(directory.path()).unwrap();
    assert!(!new.exists());
    assert_eq!(store.spend(&key(0), &EPOCH, NOW).await, Ok(Spend::Admitted));
}

#[tokio::test]
async fn only_the_owner_may_look() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("data/spent");
    let store = open(&directory).unwrap();
    assert_eq!(store.spend(&key(0), &EPOCH, NOW).await, Ok(Spend::Admitted));
    drop(store);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&directory), mode(directory.parent().unwrap())), (0o700, 0o700));
    for entry in fs::read_dir(&directory).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).unwrap();
    let error = open(&directory).unwrap_err();
    assert!(error.to_string().contains("(mode 770): chmod 700 it"), "{error}");
}

#[test]
fn a_path_that_is_no_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = open(&path).unwrap_err();
        assert!(error.to_string().contains("file"), "it names the path: {error}");
    }
}
