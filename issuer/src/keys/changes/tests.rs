use super::super::at_rest::AtRest;
use super::super::control::{Exported, Form, export, to_import};
use super::*;
use crate::config::{Config, Keys};
use crate::control::{KeyContent, TokenKeyView};
use crate::keys::Shelf;
use crate::rotation::{self, Lifetime};
use std::fs::{read_dir, rename};
use tempfile::TempDir;

const START: UnixSeconds = UnixSeconds(1_000_000);

fn open(directory: &Path) -> KeyStore {
    let mut store = KeyStore::open(directory, AtRest::default()).unwrap();
    store.rotate(&Schedule::TEST, START).unwrap();
    store
}

fn asked(store: &mut KeyStore, request: KeyRequest, now: UnixSeconds) -> Result<Vec<TokenKeyView>, Refused> {
    let lines = store.carry_out(request, &Schedule::TEST, now)?.into_iter();
    Ok(lines
        .map(|line| match line {
            Line::TokenKey(key) => key,
            other => panic!("{other:?}"),
        })
        .collect())
}

fn rotate(in_seconds: Option<u64>) -> KeyRequest {
    KeyRequest::Rotate { token_type: None, in_seconds }
}

fn retire(key: &TokenKeyView) -> KeyRequest {
    KeyRequest::Retire { id: Some(key.id.clone()), revokes: false }
}

fn list(store: &mut KeyStore, now: UnixSeconds) -> Vec<TokenKeyView> {
    asked(store, KeyRequest::List, now).unwrap()
}

fn current(store: &KeyStore, now: UnixSeconds) -> Lifetime {
    rotation::current(&lives(store.keys(), TokenType::BlindRsa2048), now).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_rotation_is_on_the_disk_and_leaves_the_published_times_alone() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let first = list(&mut store, START)[0].clone();
    let made = asked(&mut store, rotate(Some(100)), START).unwrap();
    assert_eq!((made.len(), made[0].phase.as_str(), made[0].in_use_from.0), (1, "upcoming", START.0 + 100));
    let both = list(&mut store, START);
    let old = both.iter().find(|key| key.id == first.id).unwrap();
    assert_eq!((old.in_use_from, old.leaves_at), (first.in_use_from, first.leaves_at));
    assert_eq!(old.issues_until.0, START.0 + 100);
    drop(store);
    assert_eq!(list(&mut KeyStore::open(home.path(), AtRest::default()).unwrap(), START), both);
    for key in both {
        assert!(home.path().join(&key.file).exists(), "{key:?}");
    }
}

#[test]
fn without_a_time_a_rotation_publishes_ahead() {
    let home = TempDir::new().unwrap();
    let made = asked(&mut open(home.path()), rotate(None), START).unwrap();
    assert_eq!(made[0].in_use_from.0, START.0 + 1_000);
}

#[test]
fn a_crash_in_a_rotation_leaves_the_old_state_or_a_successor() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let before = list(&mut store, START)[0].clone();
    asked(&mut store, rotate(Some(0)), START).unwrap();
    // The state before the old key is renamed.
    let old = list(&mut store, START).into_iter().find(|key| key.id == before.id).unwrap();
    drop(store);
    rename(home.path().join(old.file), home.path().join(&before.file)).unwrap();
    let mut store = open(home.path());
    assert_eq!(store.keys().len(), 2, "no third key is made");
    let newest = list(&mut store, START).into_iter().find(|key| key.phase == "newest").unwrap();
    assert_ne!(newest.id, before.id);
}

#[test]
fn a_retired_key_has_a_successor_at_once_and_never_comes_back() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let first = list(&mut store, START)[0].clone();
    let made = asked(&mut store, retire(&first), START).unwrap();
    assert_eq!((made.len(), made[0].phase.as_str()), (1, "newest"));
    assert_eq!(list(&mut store, START), made);
    drop(store);
    assert!(names(home.path()).iter().any(|name| *name == format!("{}.retired-{START}", first.file)));
    let mut store = open(home.path());
    assert_eq!(list(&mut store, START), made, "a restart does not bring it back");
    let later = START.saturating_add(Duration::from_secs(7 * 86_400));
    store.rotate(&Schedule::TEST, later).unwrap();
    assert!(!names(home.path()).iter().any(|name| name.contains(".retired-")), "the file goes in a week");
}

#[test]
fn all_keys_are_revoked_at_once_and_named_until_they_would_have_ended() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    asked(&mut store, rotate(Some(5_000)), START).unwrap();
    let mut ids: Vec<_> = store.keys().iter().map(|key| key.signing.id().to_hex()).collect();
    ids.sort();
    let ends = store.keys().iter().map(|key| key.life.not_after).max().unwrap();
    let made = asked(&mut store, KeyRequest::Retire { id: None, revokes: true }, START).unwrap();
    assert_eq!((made.len(), made[0].phase.as_str(), ids.len()), (1, "newest", 2));
    assert_eq!(store.revoked(START), ids);
    drop(store);
    let mut store = open(home.path());
    assert_eq!((store.revoked(START), list(&mut store, START)), (ids, made), "a restart changes nothing");
    let last = UnixSeconds(ends.0 - 1);
    store.rotate(&Schedule::TEST, last).unwrap();
    assert_eq!(store.revoked(last).len(), 1);
    store.rotate(&Schedule::TEST, ends).unwrap();
    assert_eq!(store.revoked(ends), [""; 0]);
    assert!(
        !names(home.path()).iter().any(|name| name.contains(".revoked-")),
        "the files go with their keys"
    );
}

/// Without its id, a gateway would accept a revoked key's tokens for the grace period.
#[test]
fn revoked_keys_are_named_while_the_directory_cannot_be_read() {
    let home = TempDir::new().unwrap();
    let (there, away) = (home.path().join("keys"), home.path().join("away"));
    let mut store = open(&there);
    asked(&mut store, KeyRequest::Retire { id: None, revokes: true }, START).unwrap();
    drop(store);
    let mut store = open(&there);
    let revoked = store.revoked(START);
    assert_eq!(revoked.len(), 1);
    rename(&there, &away).unwrap();
    assert_eq!(store.revoked(START), revoked, "it is gone");
    std::fs::create_dir(&there).unwrap();
    store.rotate(&Schedule::TEST, START).unwrap();
    assert_eq!(store.revoked(START), revoked, "another file system is mounted there");
    drop(store);
    std::fs::remove_dir(&there).unwrap();
    std::fs::write(&there, "").unwrap();
    assert!(KeyStore::open(&there, AtRest::default()).is_err(), "a start that cannot look names none");
}

/// A leak of a key may be discovered after the key was retired.
#[test]
fn a_retired_key_is_revoked_by_its_id_and_with_all_others() {
    for by_id in [true, false] {
        let home = TempDir::new().unwrap();
        let mut store = open(home.path());
        let (first, whole) = (list(&mut store, START)[0].clone(), store.keys()[0].signing.id().to_hex());
        let made = asked(&mut store, retire(&first), START).unwrap();
        assert_eq!(store.revoked(START), [""; 0]);
        let id = by_id.then(|| first.id.clone());
        asked(&mut store, KeyRequest::Retire { id, revokes: true }, START).unwrap();
        assert_eq!(list(&mut store, START) == made, by_id, "the key in use stays if the other one is named");
        let revoked = store.revoked(START);
        assert!(revoked.contains(&whole) && revoked.len() == if by_id { 1 } else { 2 }, "{revoked:?}");
        drop(store);
        assert_eq!(KeyStore::open(home.path(), AtRest::default()).unwrap().revoked(START), revoked);
        assert!(!names(home.path()).iter().any(|name| name.contains(".retired-")));
    }
}

#[test]
fn retiring_a_successor_leaves_the_key_in_use_alone() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let present = current(&store, START);
    let successor = asked(&mut store, rotate(Some(5_000)), START).unwrap()[0].clone();
    assert_eq!(asked(&mut store, retire(&successor), START).unwrap(), []);
    assert_eq!((current(&store, START).not_after, store.keys().len()), (present.not_after, 1));
    let due = UnixSeconds(START.0 + 4_000);
    store.rotate(&Schedule::TEST, due).unwrap();
    assert_eq!(store.keys().len(), 2, "the schedule makes the next one in time");
}

#[test]
fn a_key_that_cannot_be_set_aside_stays_in_use() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let first = list(&mut store, START)[0].clone();
    std::fs::create_dir(home.path().join(format!("{}.retired-{START}", first.file))).unwrap();
    let refused = asked(&mut store, retire(&first), START).unwrap_err();
    assert!(refused.sentence.contains("its key is still good"), "{refused}");
    assert!(list(&mut store, START).iter().any(|key| key.id == first.id));
}

#[test]
fn an_exported_key_is_imported_elsewhere_once() {
    let (here, there, out) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut other = open(there.path());
    let truncated = |store: &KeyStore| store.keys()[0].signing.id().truncated();
    // Requests name a key by the last byte of its id, so two keys that share it cannot be one issuer's.
    let mut store = open(here.path());
    while truncated(&store) == truncated(&other) {
        std::fs::remove_file(here.path().join(&list(&mut store, START)[0].file)).unwrap();
        drop(store); // it has the directory's lock
        store = open(here.path());
    }
    let key = list(&mut store, START)[0].clone();
    let keys = Keys::under(here.path());
    let export = |keys: &Keys, id| export(&Config::with_keys(keys), id, Form::AsItIs, out.path());
    let Exported { path: copy, is_encrypted: false } = export(&keys, &key.id).unwrap() else {
        panic!("an encrypted copy of a plain file");
    };
    assert_eq!(copy, out.path().join(&key.file));
    assert!(export(&keys, &key.id).unwrap_err().sentence.contains("name a new file"));
    let absent = "0".repeat(64);
    assert!(export(&keys, &absent).unwrap_err().sentence.contains("postern issuer key list"));

    let nowhere = export(&Keys::under(&out.path().join("none")), &key.id).unwrap_err();
    assert!(nowhere.sentence.contains("as the issuer's user or as root"), "{nowhere}");

    let request = to_import(&copy, &keys, None).unwrap();
    assert!(format!("{request:?}").contains("redacted"));
    let imported = asked(&mut other, request.clone(), START).unwrap();
    assert_eq!((&imported[0].id, &imported[0].file), (&key.id, &key.file));
    let again = asked(&mut other, request.clone(), START).unwrap_err();
    assert!(again.sentence.contains("here already"), "{again}");
    drop(other);
    assert_eq!(KeyStore::open(there.path(), AtRest::default()).unwrap().keys().len(), 2);

    let mut late = open(TempDir::new().unwrap().path());
    let over = asked(&mut late, request, key.leaves_at).unwrap_err();
    assert!(over.sentence.contains("was over at"), "{over}");
}

#[test]
fn what_a_start_would_refuse_is_not_imported() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let key = list(&mut store, START)[0].clone();
    let content = hex::encode(std::fs::read(home.path().join(&key.file)).unwrap());
    let content: KeyContent = serde_json::from_value(content.into()).unwrap();
    let broken: KeyContent = serde_json::from_value("no digits".into()).unwrap();
    let import = |name: &str, content: &KeyContent| KeyRequest::Import {
        name: name.to_owned(),
        content: content.clone(),
    };
    for (request, why) in [
        (import("backup.p8", &content), "give it back the name"),
        (import("../1-2-3-00000000.p8", &content), "another key than its name"),
        (import(&key.file, &broken), "is corrupt"),
    ] {
        let refused = asked(&mut store, request, START).unwrap_err();
        assert!(refused.sentence.contains(why), "{refused}");
    }
    assert_eq!(Shelf::Directory(home.path().into()).key_files().unwrap().len(), 1);
}

#[test]
fn other_types_and_too_many_keys_are_refused() {
    let home = TempDir::new().unwrap();
    let mut store = open(home.path());
    let other = KeyRequest::Rotate { token_type: Some(5), in_seconds: None };
    assert!(asked(&mut store, other, START).unwrap_err().sentence.contains("[keys] types"));
    let far = asked(&mut store, rotate(Some(40_000)), START).unwrap_err();
    assert!(far.sentence.contains("choose a shorter time"), "{far}");
    for _ in 1..MAX_LIVE_KEYS {
        asked(&mut store, rotate(Some(0)), START).unwrap();
    }
    let full = asked(&mut store, rotate(Some(0)), START).unwrap_err();
    assert!(full.sentence.contains("wait until one leaves, or retire one"), "{full}");
}
