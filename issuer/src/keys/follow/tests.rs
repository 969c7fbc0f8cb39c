use super::super::at_rest::AtRest;
use super::*;
use crate::control::KeyRequest;
use crate::directory::{Document, Imprint};
use postern_token::TokenTypes;
use std::collections::BTreeSet;
use std::fs::{read, read_dir, write};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

const START: UnixSeconds = UnixSeconds(1_000_000);
const SCHEDULE: Schedule = Schedule { types: TokenTypes::PUBLIC, ..Schedule::TEST };

/// Two issuers, and the copies between them.
struct Scene {
    homes: [TempDir; 3],
    first: KeyStore,
    follower: KeyStore,
}

impl Scene {
    fn new() -> Self {
        let homes = [(); 3].map(|()| TempDir::new().unwrap());
        let open = |home: &TempDir| KeyStore::open(home.path(), AtRest::default()).unwrap();
        let (mut first, mut follower) = (open(&homes[0]), open(&homes[2]));
        first.rotate(&SCHEDULE, START).unwrap();
        follower.follow(Some(homes[1].path()));
        Self { homes, first, follower }
    }

    fn copies(&self) -> &Path {
        self.homes[1].path()
    }

    /// Copies all files, as `rsync` without --delete does.
    fn copy(&self) {
        for entry in read_dir(self.homes[0].path()).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), self.copies().join(entry.file_name())).unwrap();
        }
    }

    fn clear(&self) {
        read_dir(self.copies())
            .unwrap()
            .for_each(|entry| std::fs::remove_file(entry.unwrap().path()).unwrap());
    }

    fn look(&mut self, now: u64) -> Result<(), KeysError> {
        self.follower.rotate(&SCHEDULE, UnixSeconds(now))
    }

    /// Returns both directories, as served.
    fn documents(&self, now: u64) -> [Vec<u8>; 2] {
        let imprint = Imprint { request_uri: "/token-request".to_owned(), batch_limit: 100 };
        [&self.first, &self.follower].map(|store| {
            let now = UnixSeconds(now);
            Document::of(store.keys(), store.revoked(now), &SCHEDULE, &imprint, now)
                .representation
                .body
                .to_vec()
        })
    }

    fn assert_same(&self, now: u64) {
        let [first, follower] = self.documents(now);
        assert_eq!(first, follower, "at {now}");
    }
}

#[test]
fn keys_come_shorten_and_end_as_at_the_first_issuer_and_nothing_is_written_to_the_copies() {
    let mut scene = Scene::new();
    let missing = scene.look(START.0).unwrap_err().to_string();
    assert!(missing.contains("is not among the copies") && scene.follower.keys().is_empty(), "{missing}");
    scene.copy();
    scene.look(START.0).unwrap();
    scene.assert_same(START.0);

    // A scheduled rotation, and one by an operator: the old file name stays among the copies.
    scene.first.rotate(&SCHEDULE, UnixSeconds(1_029_000)).unwrap();
    let rotate = KeyRequest::Rotate { token_type: None, in_seconds: Some(100) };
    scene.first.carry_out(rotate, &SCHEDULE, UnixSeconds(1_029_100)).unwrap();
    scene.copy();
    scene.look(1_029_100).unwrap();
    scene.assert_same(1_029_100);
    let names =
        |store: &KeyStore| -> BTreeSet<_> { store.keys().iter().map(|key| FileName::of(key).text).collect() };
    assert_eq!(names(&scene.first), names(&scene.follower));

    let id = scene.first.keys()[0].signing.id().short();
    scene
        .first
        .carry_out(
            KeyRequest::Retire { id: Some(id.clone()), revokes: true },
            &SCHEDULE,
            UnixSeconds(1_029_300),
        )
        .unwrap();
    scene.copy();
    let before = read_dir(scene.copies()).unwrap().count();
    scene.look(1_029_300).unwrap();
    scene.assert_same(1_029_300);
    assert_eq!(
        scene.follower.revoked(UnixSeconds(1_029_300)).len(),
        1,
        "its tokens are void by either directory"
    );
    assert!(scene.follower.keys().iter().all(|key| key.signing.id().short() != id));
    assert_eq!(read_dir(scene.copies()).unwrap().count(), before);

    // Everything outlives the copies, and a restart.
    scene.clear();
    scene.look(1_029_301).unwrap();
    scene.assert_same(1_029_301);
    let home = scene.homes[2].path().to_owned();
    drop(std::mem::replace(
        &mut scene.follower,
        KeyStore::open(TempDir::new().unwrap().path(), AtRest::default()).unwrap(),
    ));
    scene.follower = KeyStore::open(&home, AtRest::default()).unwrap();
    scene.follower.follow(Some(scene.homes[1].path()));
    scene.look(1_029_302).unwrap();
    scene.assert_same(1_029_302);
}

#[test]
fn a_key_that_has_ended_is_not_used_and_its_file_is_set_aside_as_soon_as_that_works() {
    for revokes in [false, true] {
        let mut scene = Scene::new();
        scene.copy();
        scene.look(START.0).unwrap();
        let (name, id) =
            (FileName::of(&scene.follower.keys()[0]).text, scene.follower.keys()[0].signing.id());
        let retire = KeyRequest::Retire { id: Some(id.short()), revokes };
        scene.first.carry_out(retire, &SCHEDULE, START).unwrap();
        scene.copy();
        let (own, now) = (scene.homes[2].path().to_owned(), UnixSeconds(START.0 + 1));
        let why = if revokes { Why::Revoked(id.to_hex()) } else { Why::Retired };
        let obstacle = own.join(why.mark(&name, now));
        std::fs::create_dir(&obstacle).unwrap();
        for _ in 0..2 {
            scene.look(now.0).unwrap();
            let fault = scene.follower.copy_fault().unwrap();
            assert!(fault.contains("cannot be set aside"), "{fault}");
            assert!(scene.follower.keys().iter().all(|key| key.signing.id() != id));
            assert_eq!(scene.follower.revoked(now).len(), usize::from(revokes));
        }
        std::fs::remove_dir(&obstacle).unwrap();
        scene.look(now.0).unwrap();
        assert!(scene.follower.copy_fault().is_none() && !own.join(&name).exists());
        scene.assert_same(now.0);
    }
}

/// A gateway may fetch the directory of either issuer.
#[test]
fn a_follower_names_what_was_revoked_after_it_was_retired_or_before_the_follower_was_there() {
    let mut scene = Scene::new();
    scene.copy();
    scene.look(START.0).unwrap();
    for revokes in [false, true] {
        let id = (!revokes).then(|| scene.first.keys()[0].signing.id().short());
        scene.first.carry_out(KeyRequest::Retire { id, revokes }, &SCHEDULE, START).unwrap();
        scene.copy();
        scene.look(START.0).unwrap();
        scene.assert_same(START.0);
    }
    assert_eq!(scene.follower.revoked(START).len(), 2);
    let late = TempDir::new().unwrap();
    scene.follower = KeyStore::open(late.path(), AtRest::default()).unwrap();
    scene.follower.follow(Some(scene.homes[1].path()));
    for _ in 0..2 {
        scene.look(START.0).unwrap();
        scene.assert_same(START.0);
    }
    let is_revoked = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().contains(".revoked-");
    let copied = read_dir(late.path()).unwrap().map(Result::unwrap).filter(is_revoked).count();
    assert_eq!((scene.follower.copy_fault(), copied), (None, 2));
    scene.follower = KeyStore::open(TempDir::new().unwrap().path(), AtRest::default()).unwrap();
    let kept = KeyStore::open(late.path(), AtRest::default());
    assert_eq!(kept.unwrap().revoked(START).len(), 2);
}

#[test]
fn a_torn_copy_is_told_and_tried_again_and_the_keys_of_before_stay() {
    let mut scene = Scene::new();
    scene.copy();
    scene.look(START.0).unwrap();
    scene.first.rotate(&SCHEDULE, UnixSeconds(1_029_000)).unwrap();
    scene.copy();
    let path = scene.copies().join(FileName::of(&scene.first.keys()[1]).text);
    let whole = read(&path).unwrap();
    for torn in [0, 100, whole.len() - 1] {
        write(&path, &whole[..torn]).unwrap();
        scene.look(1_029_000).unwrap();
        let fault = scene.follower.copy_fault().unwrap().to_owned();
        assert!(fault.contains("corrupt") && fault.contains("stay in use"), "{fault}");
        assert_eq!(scene.follower.keys().len(), 1);
    }
    write(&path, &whole).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    scene.look(1_029_000).unwrap();
    assert!(scene.follower.copy_fault().unwrap().contains("chmod"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    scene.look(1_029_000).unwrap();
    assert_eq!(scene.follower.copy_fault(), None);
    scene.assert_same(1_029_000);
    std::fs::remove_dir_all(scene.copies()).unwrap();
    scene.look(1_029_000).unwrap();
    assert!(scene.follower.copy_fault().unwrap().contains("[group] follow"));
    scene.assert_same(1_029_000);
}

#[test]
fn a_successor_that_does_not_come_is_missed_while_there_is_time_and_none_is_made() {
    let mut scene = Scene::new();
    scene.copy();
    // Half of `publish_ahead` is left for copying.
    scene.look(1_029_499).unwrap();
    let late = scene.look(1_029_500).unwrap_err().to_string();
    assert!(late.contains("publish_ahead"), "{late}");
    assert_eq!(scene.follower.keys().len(), 1);
    assert!(scene.look(1_040_000).is_err(), "its time is over");
    assert!(scene.follower.keys().is_empty());
}

#[test]
fn what_an_operator_asks_for_is_refused_with_the_place_where_it_is_done() {
    let mut scene = Scene::new();
    scene.copy();
    scene.look(START.0).unwrap();
    let rotate = KeyRequest::Rotate { token_type: None, in_seconds: None };
    for request in [rotate, KeyRequest::Retire { id: None, revokes: true }] {
        let refused = scene.follower.carry_out(request, &SCHEDULE, START).unwrap_err();
        assert!(refused.sentence.contains("follows the first one"), "{refused}");
    }
    assert_eq!(scene.follower.carry_out(KeyRequest::List, &SCHEDULE, START).unwrap().len(), 1);
}
