//! Tokens that a mark binds to an embedded store: its directory is emptied, restored from a backup, or copied.

use crate::support::marked::id;
use postern_spend::{Embedded, Epoch, Fsync, Marks, Spend, SpendStore, Unknown};
use postern_token::{Mark, Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::fs;
use std::path::Path;
use std::sync::Arc;

const EPOCH: Epoch = Epoch { key: TokenKeyId([0xab; 32]), expires: UnixSeconds(2_000), mark: None };
const NOW: UnixSeconds = UnixSeconds(1_000);

fn open(directory: &Path) -> Embedded {
    let store = Embedded::open(directory, Fsync::default(), NOW).unwrap();
    store.bind(Marks { id: Arc::new(id) });
    store.offer(&[EPOCH]);
    store
}

fn mark(store: &Embedded) -> Mark {
    store.binding(EPOCH.key).unwrap()
}

async fn spend(store: &Embedded, number: u8, mark: Option<Mark>) -> Result<Spend, Unknown> {
    let epoch = Epoch { mark: mark.map(|mark| id(EPOCH.key, mark)), ..EPOCH };
    let key = SpentKey::derive(TokenType::BlindRsa2048, EPOCH.key, Nonce([number; 32]));
    store.spend(&key, &epoch, NOW).await
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        _ = fs::remove_file(&place);
        fs::copy(entry.path(), place).unwrap();
    }
}

/// As `cp -r from/. to/` does: the files stay, and get another content.
fn copy_over(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[tokio::test]
async fn a_mark_lasts_as_long_as_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let first = mark(&store);
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
    assert_eq!(spend(&store, 2, Some(Mark::new([9; 16]))).await, Ok(Spend::Void), "a mark of others");
    drop(store);
    let store = open(directory.path());
    assert_eq!(mark(&store), first);
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::AlreadySpent));
    assert_eq!(spend(&store, 3, Some(first)).await, Ok(Spend::Admitted));
}

#[tokio::test]
async fn an_emptied_directory_admits_none_of_the_tokens_before() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let first = mark(&store);
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
    drop(store);
    fs::remove_dir_all(directory.path()).unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Void));
    assert_eq!(spend(&store, 2, Some(mark(&store))).await, Ok(Spend::Admitted));
}

#[tokio::test]
async fn a_backup_that_is_restored_admits_none_of_the_tokens_before() {
    let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let first = mark(&store);
    copy(directory.path(), backup.path());
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
    drop(store);
    let mut marks = vec![first];
    for number in 2..5 {
        copy(backup.path(), directory.path());
        let store = open(directory.path());
        assert!(!marks.contains(&mark(&store)), "each restored file has its own mark");
        for before in &marks {
            assert_eq!(spend(&store, 1, Some(*before)).await, Ok(Spend::Void));
        }
        marks.push(mark(&store));
        assert_eq!(spend(&store, number, marks.last().copied()).await, Ok(Spend::Admitted));
    }
}

/// Nothing that is put in their place while the store runs is taken for its own records when it stops.
#[tokio::test]
async fn a_backup_that_is_restored_under_a_running_store_admits_none_of_the_tokens_before() {
    for restore in [copy, copy_over] {
        let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        drop(open(directory.path()));
        copy(directory.path(), backup.path());
        let store = open(directory.path());
        let first = mark(&store);
        assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
        restore(backup.path(), directory.path());
        drop(store);
        let store = open(directory.path());
        assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Void));
    }
}

#[tokio::test]
async fn a_backup_of_hard_links_admits_none_of_the_tokens_before() {
    let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let first = mark(&store);
    let name = format!("{}.spent", EPOCH.key.to_hex());
    fs::hard_link(directory.path().join(&name), backup.path().join(&name)).unwrap();
    drop(store);
    let store = open(directory.path());
    assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
    drop(store);
    fs::rename(backup.path().join(&name), directory.path().join(&name)).unwrap();
    assert_eq!(spend(&open(directory.path()), 1, Some(first)).await, Ok(Spend::Void));
}

/// The copy is made while the store runs, or before it starts; it is written over the same files.
#[tokio::test]
async fn a_backup_over_the_same_files_admits_none_of_the_tokens_before() {
    for runs in [true, false] {
        let (directory, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(directory.path());
        let first = mark(&store);
        assert_eq!(spend(&store, 1, Some(first)).await, Ok(Spend::Admitted));
        let store = if runs {
            copy(directory.path(), backup.path());
            store
        } else {
            drop(store);
            copy(directory.path(), backup.path());
            open(directory.path())
        };
        assert_eq!(mark(&store), first, "a copy takes nothing from the original");
        assert_eq!(spend(&store, 2, Some(first)).await, Ok(Spend::Admitted));
        drop(store);
        copy_over(backup.path(), directory.path());
        let store = open(directory.path());
        for number in [1, 2] {
            assert_eq!(
                spend(&store, number, Some(first)).await,
                Ok(Spend::Void),
                "saved while it ran: {runs}"
            );
        }
        assert_eq!(spend(&store, 3, Some(mark(&store))).await, Ok(Spend::Admitted));
    }
}

#[test]
fn a_store_without_its_lock_file_is_still_locked() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    fs::remove_file(directory.path().join("lock")).unwrap();
    let second = Embedded::open(directory.path(), Fsync::default(), NOW);
    assert!(matches!(&second, Err(error) if error.to_string().contains("another process")), "{second:?}");
    drop(store);
    Embedded::open(directory.path(), Fsync::default(), NOW).unwrap();
}

/// Two gateways, each with a copy, would each admit a token.
#[tokio::test]
async fn a_copy_next_to_the_original_has_its_own_mark() {
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let original = open(directory.path());
    copy(directory.path(), other.path());
    let copied = open(other.path());
    let (here, there) = (mark(&original), mark(&copied));
    assert_eq!(spend(&original, 1, Some(here)).await, Ok(Spend::Admitted));
    assert_eq!(spend(&copied, 1, Some(here)).await, Ok(Spend::Void));
    assert_eq!(spend(&copied, 2, Some(there)).await, Ok(Spend::Admitted));
    assert_eq!(spend(&original, 2, Some(there)).await, Ok(Spend::Void));
}

#[tokio::test]
async fn a_token_without_a_mark_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    assert_eq!(spend(&store, 1, None).await, Err(Unknown::Unmarked));
    assert_eq!(spend(&store, 1, Some(mark(&store))).await, Ok(Spend::Admitted));
    let next = Epoch { key: TokenKeyId([0xcd; 32]), ..EPOCH };
    assert_eq!(store.binding(next.key), None, "no token can be requested before it has a mark");
    store.offer(&[EPOCH, next]);
    assert!(store.binding(next.key).is_some());
}
