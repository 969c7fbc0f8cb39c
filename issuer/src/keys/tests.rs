use super::*;
use crate::config::AccountsConfig;
use postern_testkit::postgres::Postgres;
use postern_token::{SigningKey, TokenTypes};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

const START: UnixSeconds = UnixSeconds(1_000_000);

fn open(directory: &Path, now: UnixSeconds) -> KeyStore {
    let mut store = KeyStore::open(directory, AtRest::default()).unwrap();
    store.rotate(&Schedule::TEST, now).unwrap();
    store
}

fn ids(store: &KeyStore) -> Vec<String> {
    store.keys().iter().map(|key| key.signing.id().to_hex()).collect()
}

fn only_file(directory: &Path) -> PathBuf {
    let files = Shelf::Directory(directory.into()).key_files().unwrap();
    assert_eq!(files.len(), 1);
    files[0].clone()
}

#[test]
fn a_restart_keeps_the_key_and_its_times_in_private_files() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("keys");
    let first = open(&directory, START);
    let (before, life) = (ids(&first), first.keys()[0].life);
    drop(first);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&only_file(&directory))), (0o700, 0o600));

    let again = open(&directory, START);
    assert_eq!((ids(&again), again.keys()[0].life), (before, life));
}

#[test]
fn keys_rotate_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path(), START);
    let first = ids(&store)[0].clone();
    store.rotate(&Schedule::TEST, UnixSeconds(1_029_000)).unwrap();
    let both = ids(&store);
    assert_eq!((both.len(), &both[0]), (2, &first));
    let truncated = |id: &str| id[62..].to_owned();
    assert_ne!(truncated(&both[0]), truncated(&both[1]));

    store.rotate(&Schedule::TEST, UnixSeconds(1_036_999)).unwrap();
    assert_eq!(ids(&store), both);
    store.rotate(&Schedule::TEST, UnixSeconds(1_037_000)).unwrap();
    assert_eq!(ids(&store), both[1..]);
    drop(store);
    assert_eq!(ids(&open(directory.path(), UnixSeconds(1_037_000))), both[1..]);
    only_file(directory.path());
}

#[test]
fn a_corrupt_empty_or_exchanged_file_is_an_error_and_nothing_is_made_instead() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path(), START));
    let path = only_file(directory.path());
    let good = std::fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[600] ^= 1;
    for bad in [&good[..0], &good[..700], &flipped] {
        std::fs::write(&path, bad).unwrap();
        let error = KeyStore::open(directory.path(), AtRest::default()).unwrap_err();
        assert!(matches!(error, KeysError::Corrupt { .. }), "{error}");
    }
    std::fs::write(&path, SigningKey::generate_pkcs8().unwrap()).unwrap();
    assert!(matches!(
        KeyStore::open(directory.path(), AtRest::default()).unwrap_err(),
        KeysError::OtherKey { .. }
    ));
    assert_eq!(only_file(directory.path()), path);
}

#[test]
fn a_key_that_others_can_read_or_without_times_in_its_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path(), START));
    let path = only_file(directory.path());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let error = KeyStore::open(directory.path(), AtRest::default()).unwrap_err().to_string();
    assert!(error.contains("(mode 0640)") && error.contains("chmod 600"), "{error}");

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&path, directory.path().join("backup.p8")).unwrap();
    assert!(matches!(
        KeyStore::open(directory.path(), AtRest::default()).unwrap_err(),
        KeysError::Name { .. }
    ));
}

#[test]
fn the_same_key_twice_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path(), START));
    let path = only_file(directory.path());
    let name = path.file_name().unwrap().to_str().unwrap().replacen("1030000", "1030001", 1);
    std::fs::copy(&path, directory.path().join(name)).unwrap();
    assert!(matches!(
        KeyStore::open(directory.path(), AtRest::default()).unwrap_err(),
        KeysError::Collision { .. }
    ));
}

#[test]
fn one_directory_serves_one_issuer() {
    let directory = tempfile::tempdir().unwrap();
    let _first = open(directory.path(), START);
    assert!(matches!(
        KeyStore::open(directory.path(), AtRest::default()).unwrap_err(),
        KeysError::Directory(DataDirError::InUse { .. })
    ));
}

#[test]
fn a_clock_that_was_ahead_for_a_moment_takes_no_key_away() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path(), START);
    let first = ids(&store)[0].clone();
    let ahead = UnixSeconds(START.0 + 60 * 86_400);
    store.rotate(&Schedule::TEST, ahead).unwrap();
    assert!(!ids(&store).contains(&first), "its time is over, as the clock has it");

    store.rotate(&Schedule::TEST, UnixSeconds(START.0 + 10)).unwrap();
    assert!(ids(&store).contains(&first), "while it runs");
    store.rotate(&Schedule::TEST, ahead).unwrap();
    drop(store);
    let again = open(directory.path(), UnixSeconds(START.0 + 20));
    assert!(ids(&again).contains(&first), "and after a restart");
    let current =
        rotation::current(&lives(again.keys(), TokenType::BlindRsa2048), UnixSeconds(START.0 + 20)).unwrap();
    assert_eq!(current.issue_until, UnixSeconds(START.0 + 30_000), "the first key is the one in use");
}

#[test]
fn the_file_of_a_key_goes_a_week_after_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path(), START);
    let name = only_file(directory.path());
    let aside = || {
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().contains(".over-")).count()
    };
    let end = START.0 + 37_000;
    store.rotate(&Schedule::TEST, UnixSeconds(end)).unwrap();
    assert!(!name.exists());
    assert_eq!(aside(), 1);
    store.rotate(&Schedule::TEST, UnixSeconds(end + 7 * 86_400 - 1)).unwrap();
    let before = aside();
    store.rotate(&Schedule::TEST, UnixSeconds(end + 7 * 86_400)).unwrap();
    assert_eq!(aside(), before - 1);
}

#[test]
fn files_from_the_future_are_a_fault_of_the_clock() {
    let directory = tempfile::tempdir().unwrap();
    let now = UnixSeconds::now();
    let store = open(directory.path(), now);
    assert_eq!(store.clock_fault(now), None);
    let said = store.clock_fault(now.saturating_sub(Duration::from_secs(3_600))).unwrap();
    assert!(
        said.contains("the clock is behind, or was ahead then") && said.contains("Set the clock"),
        "{said}"
    );
}

/// Requests could not distinguish the two once the clock is right. By chance two of fifteen keys share the byte in a third of the
/// runs.
#[test]
fn a_new_key_shares_no_truncated_id_with_one_that_may_come_back() {
    let schedule = Schedule { types: TokenTypes::new(&[5]).unwrap(), ..Schedule::TEST };
    for _ in 0..10 {
        let directory = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(directory.path(), AtRest::default()).unwrap();
        for step in 0..15 {
            store.rotate(&schedule, UnixSeconds(START.0 + step * 40_000)).unwrap();
        }
        let mut bytes: Vec<u8> = store
            .keys()
            .iter()
            .chain(&store.may_come_back())
            .map(|key| key.signing.id().truncated())
            .collect();
        let count = bytes.len();
        assert!(count >= 15, "{count} keys");
        bytes.sort_unstable();
        bytes.dedup();
        assert_eq!(bytes.len(), count);
    }
}

#[test]
fn a_file_that_cannot_be_read_may_refer_to_a_key_in_the_hsm_and_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let original = directory.path().join("1-2-3-ab.pkcs11");
    let (at_rest, shelf) = (AtRest::default(), Shelf::Directory(directory.path().to_owned()));
    assert!(!at_rest.release(&shelf, directory.path(), &original), "a directory cannot be read as a file");
    std::fs::write(&original, "no reference").unwrap();
    assert!(at_rest.release(&shelf, &original, &original));
}

#[test]
fn a_clock_that_differs_from_the_databases_drops_no_key_there() {
    let (postgres, directory) = (Postgres::start(&[]), tempfile::tempdir().unwrap());
    let config = AccountsConfig { database: Some(postgres.url("")), password_file: None };
    let server = Server::of(&config).unwrap();
    let locked = open_directory(directory.path()).unwrap();
    let mut store = KeyStore::of(locked, AtRest::default(), server).unwrap();
    let now = UnixSeconds::now();
    store.rotate(&Schedule::TEST, now).unwrap();
    assert_eq!(store.clock_fault(now), None);
    let first = ids(&store)[0].clone();
    for wrong in [UnixSeconds(now.0 + 60 * 86_400), now.saturating_sub(Duration::from_secs(60))] {
        store.rotate(&Schedule::TEST, wrong).unwrap();
        assert!(ids(&store).contains(&first));
        let said = store.clock_fault(wrong).unwrap();
        assert!(said.contains("that of the database 127.0.0.1/postgres"), "{said}");
    }
    store.rotate(&Schedule::TEST, UnixSeconds::now()).unwrap();
    assert_eq!(store.clock_fault(now), None);
}

/// What has been listed may be set aside before it is read, and no issuer starts without a key that it has listed.
#[test]
fn an_issuer_that_starts_reads_no_key_while_another_one_changes_them() {
    let (postgres, directory) = (Postgres::start(&[]), tempfile::tempdir().unwrap());
    let config = AccountsConfig { database: Some(postgres.url("")), password_file: None };
    let server = Server::of(&config).unwrap();
    let changing = Shelf::in_database(server.clone().unwrap()).unwrap();
    changing.hold().unwrap();
    let starting = std::thread::spawn(move || {
        let locked = open_directory(directory.path()).unwrap();
        KeyStore::of(locked, AtRest::default(), server).map(drop)
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    while postgres.sql(waiting) != ["1"] {
        assert!(!starting.is_finished(), "it has not waited");
        std::thread::sleep(Duration::from_millis(5));
    }
    changing.release();
    starting.join().unwrap().unwrap();
}

/// Another session has it, as behind a pooler in transaction mode.
#[test]
fn a_key_is_not_changed_by_a_session_without_the_lock() {
    let postgres = Postgres::start(&[]);
    let config = AccountsConfig { database: Some(postgres.url("")), password_file: None };
    let server = Server::of(&config).unwrap().unwrap();
    let [one, other] = [(); 2].map(|()| Shelf::in_database(server.clone()).unwrap());
    one.hold().unwrap();
    let path = one.join("accounts.secret");
    one.write(&path, b"a").unwrap();
    let refused = other.replace(&path, b"b").unwrap_err().to_string();
    assert!(refused.contains("no pooler"), "{refused}");
    one.release();
    assert!(one.remove(&path).is_err());
}
