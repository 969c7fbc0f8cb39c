use super::super::control::{Exported, Form, export, to_import};
use super::super::{KeyStore, inspect, set_aside};
use super::*;
use crate::config::Config;
use crate::control::{KeyRequest, Line};
use crate::rotation::Schedule;
use postern_daemon::files::write_private;
use postern_token::{TokenType, TokenTypes, UnixSeconds};
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

const START: UnixSeconds = UnixSeconds(1_000_000);
const FIRST: &str = "the first passphrase of all";
const SECOND: &str = "the second passphrase, later";

/// An issuer's directory, and a passphrase file next to it.
struct Scene {
    home: TempDir,
    keys: Keys,
}

impl Scene {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        let keys = Keys::under(&home.path().join("keys"));
        Self { home, keys }
    }

    /// Sets the lines of the passphrase file.
    fn passphrases(&mut self, lines: &str) {
        let file = self.home.path().join("passphrase");
        std::fs::write(&file, lines).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        self.keys.passphrase_file = Some(file);
    }

    /// Opens the store as a start does.
    fn start(&self, types: &[u16]) -> Result<KeyStore, KeysError> {
        let mut store = KeyStore::open(&self.keys.directory, AtRest::of(&self.keys)?)?;
        store.encrypt()?;
        let schedule = Schedule { types: TokenTypes::new(types).unwrap(), ..Schedule::TEST };
        store.rotate(&schedule, START)?;
        Ok(store)
    }

    fn files(&self) -> Vec<PathBuf> {
        Shelf::Directory(self.keys.directory.clone()).key_files().unwrap()
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        self.files().iter().map(|file| std::fs::read(file).unwrap()).collect()
    }
}

fn ids(store: &KeyStore) -> Vec<String> {
    let mut ids: Vec<_> = store.keys().iter().map(|key| key.signing.id().to_hex()).collect();
    ids.sort();
    ids
}

fn refused<T>(result: Result<T, KeysError>) -> String {
    result.map(drop).unwrap_err().to_string()
}

#[test]
fn a_start_encrypts_plain_files_and_writes_new_ones_encrypted() {
    let mut scene = Scene::new();
    let before = ids(&scene.start(&[2]).unwrap());
    let plain = scene.contents();
    scene.passphrases(FIRST);
    let after = ids(&scene.start(&[2, 5, 1]).unwrap());
    assert!(before.iter().all(|id| after.contains(id)) && after.len() == 3);
    assert!(scene.contents().iter().all(|content| is_encrypted(content)));
    assert!(!scene.contents().contains(&plain[0]));
    let written = scene.contents();
    assert_eq!(ids(&scene.start(&[2, 5, 1]).unwrap()), after);
    assert_eq!(scene.contents(), written, "what is encrypted stays as it is");
    inspect(&scene.keys).unwrap();
}

/// The files are as a kill between any two of them leaves them.
#[test]
fn some_files_plain_some_under_each_passphrase_are_all_read_and_taken_to_the_first() {
    let mut scene = Scene::new();
    let all = ids(&scene.start(&[2, 5, 1]).unwrap());
    let [one, two, _] = scene.files().try_into().unwrap();
    for (file, passphrase) in [(one, FIRST), (two, SECOND)] {
        let content = Passphrase::new(passphrase.as_bytes()).encrypt(&std::fs::read(&file).unwrap()).unwrap();
        write_private(&file, &content).unwrap();
    }
    scene.passphrases(&format!("{SECOND}\n{FIRST}\n"));
    assert_eq!(ids(&scene.start(&[2, 5, 1]).unwrap()), all);
    scene.passphrases(SECOND);
    assert_eq!(ids(&scene.start(&[2, 5, 1]).unwrap()), all, "the earlier passphrase is not needed any more");
}

#[test]
fn another_passphrase_or_none_is_refused_and_changes_nothing() {
    let mut scene = Scene::new();
    drop(scene.start(&[2]).unwrap());
    scene.passphrases(FIRST);
    drop(scene.start(&[2]).unwrap());
    let plain = scene.start(&[2, 5]).map(|store| ids(&store)).unwrap();
    let file = scene.files()[0].clone();
    // A plain file, which a start would encrypt.
    let key = Passphrase::new(FIRST.as_bytes()).decrypt(&std::fs::read(&scene.files()[1]).unwrap()).unwrap();
    write_private(&scene.files()[1], &key).unwrap();
    let before = scene.contents();

    scene.passphrases(SECOND);
    let wrong = refused(scene.start(&[2, 5]));
    for part in ["passphrase", "[keys] passphrase_file", "Nothing was changed", file.to_str().unwrap()] {
        assert!(wrong.contains(part), "{part}: {wrong}");
    }
    assert_eq!(refused(inspect(&scene.keys)), wrong);
    scene.keys.passphrase_file = None;
    let none = refused(scene.start(&[2, 5]));
    assert!(none.contains("[keys] passphrase_file") && none.contains(file.to_str().unwrap()), "{none}");
    assert_eq!(scene.contents(), before);
    for said in [wrong, none] {
        assert!(!said.contains(FIRST) && !said.contains(SECOND), "{said}");
    }
    scene.passphrases(FIRST);
    assert_eq!(ids(&scene.start(&[2, 5]).unwrap()), plain);
}

/// In one of 256 cases a wrong passphrase decrypts to something, since only the padding of CBC is checked.
#[test]
fn what_decrypts_to_no_key_is_taken_for_another_passphrases() {
    let mut scene = Scene::new();
    drop(scene.start(&[2]).unwrap());
    let garbled = Passphrase::new(FIRST.as_bytes()).encrypt(b"what a wrong key made of it").unwrap();
    write_private(&scene.files()[0], &garbled).unwrap();
    scene.passphrases(FIRST);
    assert!(matches!(scene.start(&[2]).unwrap_err(), KeysError::Undecryptable { .. }));
}

#[test]
fn a_passphrase_file_is_there_private_and_long_enough() {
    let mut scene = Scene::new();
    for (lines, why) in [
        ("", "nothing in its first line"),
        ("\nthe passphrase is in the second", "nothing in its first line"),
        ("fifteen letters\n", "has 15 bytes in its first line"),
    ] {
        scene.passphrases(lines);
        let said = refused(scene.start(&[2]));
        assert!(said.contains(why) && said.contains("openssl rand -base64 32"), "{said}");
        assert_eq!(refused(inspect(&scene.keys)), said);
    }
    scene.passphrases(FIRST);
    let file = scene.keys.passphrase_file.clone().unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let exposed = refused(scene.start(&[2]));
    assert!(exposed.contains("mode 0644") && exposed.contains("chmod 600"), "{exposed}");
    std::fs::remove_file(file).unwrap();
    assert!(refused(scene.start(&[2])).contains("cannot be read"));
    assert!(!scene.keys.directory.exists(), "and no key was made");
}

#[test]
fn files_that_are_set_aside_are_encrypted_too_and_come_back() {
    let mut scene = Scene::new();
    let mut store = scene.start(&[2]).unwrap();
    let first = ids(&store);
    let ahead = UnixSeconds(START.0 + 60 * 86_400);
    store.rotate(&Schedule::TEST, ahead).unwrap();
    drop(store);
    scene.passphrases(FIRST);
    let mut store = KeyStore::open(&scene.keys.directory, AtRest::of(&scene.keys).unwrap()).unwrap();
    store.encrypt().unwrap();
    let aside = set_aside::all(&Shelf::Directory(scene.keys.directory.clone())).unwrap();
    assert_eq!(aside.len(), 1);
    assert!(is_encrypted(&std::fs::read(&aside[0].path).unwrap()));
    store.rotate(&Schedule::TEST, START).unwrap();
    assert!(ids(&store).contains(&first[0]));
}

#[test]
fn copies_are_encrypted_or_plain_and_each_is_imported_under_another_passphrase() {
    let (mut here, mut there) = (Scene::new(), Scene::new());
    here.passphrases(FIRST);
    there.passphrases(SECOND);
    let store = here.start(&[5]).unwrap();
    let id = store.keys()[0].signing.id();
    let copy = |form, name: &str| {
        let out = here.home.path().join(name);
        std::fs::create_dir(&out).unwrap();
        export(&Config::with_keys(&here.keys), &id.short(), form, &out).unwrap()
    };
    let sealed = copy(Form::AsItIs, "sealed");
    let plain = copy(Form::Plain, "plain");
    assert!(sealed.is_encrypted && !plain.is_encrypted);
    let content = std::fs::read(&plain.path).unwrap();
    let gateway = postern_token::VerifyingKey::from_file(TokenType::VoprfRistretto255, &content).unwrap();
    assert_eq!(gateway.id(), id);

    let refused = to_import(&sealed.path, &there.keys, None).unwrap_err();
    assert!(refused.sentence.contains("no passphrase in"), "{refused}");
    let Exported { path: sealed, .. } = sealed;
    let of_here = here.keys.passphrase_file.as_deref();
    for request in [to_import(&sealed, &there.keys, of_here), to_import(&plain.path, &there.keys, None)] {
        let mut store = there.start(&[2]).unwrap();
        let lines = store.carry_out(request.unwrap(), &Schedule::TEST, START).unwrap();
        let [Line::TokenKey(imported)] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!(imported.id, id.short());
        assert!(there.contents().iter().all(|content| is_encrypted(content)));
        store
            .carry_out(KeyRequest::Retire { id: Some(id.short()), revokes: false }, &Schedule::TEST, START)
            .unwrap();
    }
}
