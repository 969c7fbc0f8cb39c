//! A database that cannot be used stops a start with a sentence, and a command likewise.

use super::{add, issuer, said};
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::run;
use rusqlite::Connection;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use tempfile::TempDir;

/// A start and a command print the same error.
fn refused_start(config: &Path, sentence: &[&str]) {
    run(["issuer".as_ref(), "--config".as_ref(), config.as_os_str()]).assert_failed(70, sentence);
    issuer(config, &["account", "list"]).assert_failed(70, sentence);
}

/// So does the examination.
fn refused(config: &Path, sentence: &[&str]) {
    refused_start(config, sentence);
    doctor(config).assert_would_not_start(70, sentence);
}

#[test]
fn a_newer_a_damaged_and_a_foreign_database_are_told_with_the_way_out() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    add(&config, "alice", "3/1d");
    let path = home.path().join("issuer/accounts.sqlite");
    let sound = std::fs::read(&path).unwrap();

    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    refused(&config, &["version 99", "or restore a backup"]);

    std::fs::write(&path, &sound).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"not at all", 0).unwrap();
    refused(&config, &["does not begin as an SQLite database", "restore"]);

    let mut damaged = sound.clone();
    damaged[4_096..].fill(0xaa);
    std::fs::write(&path, &damaged).unwrap();
    refused_start(&config, &["is damaged", "restore it from a backup"]);

    std::fs::write(&path, &sound).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    refused(&config, &["chmod 600"]);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();

    if chown(&path, Some(65_534), None).is_ok() {
        refused_start(&config, &["belongs to the user with the number 65534", "chown"]);
        chown(&path, Some(0), None).unwrap();
    }

    let secret = home.path().join("issuer/accounts.secret");
    let kept = std::fs::read(&secret).unwrap();
    std::fs::remove_file(&secret).unwrap();
    refused(&config, &["accounts.secret", "missing", "restore the file"]);
    issuer(&config, &["account", "list"])
        .assert_failed(70, &["accounts.secret", "missing", "restore the file"]);
    std::fs::write(&secret, "00".repeat(32)).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    issuer(&config, &["account", "list"])
        .assert_failed(70, &["not the secret that the API keys are stored under"]);
    std::fs::write(&secret, kept).unwrap();
    assert_eq!(said(&config, &["account", "list"]), "alice  3/1d\n");
}

/// Only root may give files away.
#[test]
fn root_leaves_no_file_that_the_issuers_user_may_not_open() {
    const OTHER: u32 = 65_534;
    let home = TempDir::new().unwrap();
    let folder = home.path().join("issuer");
    std::fs::create_dir(&folder).unwrap();
    if chown(&folder, Some(OTHER), None).is_err() {
        return;
    }
    // The folder above is root's alone, as /var/lib/private is.
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let config = issuer_config(home.path(), "");
    add(&config, "alice", "3/1d");
    assert_eq!(said(&config, &["account", "list"]), "alice  3/1d\n");
    said(&config, &["backup", home.path().join("copy").to_str().unwrap()]);
    // A file for a key is the caller's, and is not left empty where no account was made.
    let (key, none) = (home.path().join("bob.key"), home.path().join("none"));
    said(&config, &["account", "add", "bob", "--quota", "3/1d", "--out", key.to_str().unwrap()]);
    assert_eq!(key.metadata().unwrap().uid(), 0);
    issuer(&config, &["account", "add", "bob", "--quota", "3/1d", "--out", none.to_str().unwrap()])
        .assert_failed(2, &["already"]);
    assert!(!none.exists());
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().uid(), OTHER, "{}", entry.path().display());
        files += 1;
    }
    assert!(files >= 3, "{files}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    add(&config, "alice", "3/1d");
    let running = Daemon::ready("issuer", &config).await;
    for (arguments, sentence) in [
        (&["account", "add", "alice", "--quota", "1/1d"][..], "already"),
        (&["account", "add", "=alice", "--quota", "1/1d"], "no name for an account"),
        (&["account", "add", "bob", "--quota", "many"], "many"),
        (&["account", "add", "bob"], "--quota"),
        (&["account", "add", "bob", "--tier", "gold"], "has no [[tiers]]"),
        (&["account", "quota", "alice", "--no-quota"], "neither a quota nor a tier"),
        (&["account", "add", "bob", "--quota", "1/1d", "--rate", "5"], "--burst"),
        (&["account", "add", "bob", "--quota", "1/1d", "--expires", "tomorrow"], "2027-01-31"),
        (
            &["account", "add", "bob", "--quota", "1/1d", "--expires", "2026-01-31"],
            "at 2026-01-31T00:00:00Z, and that time has passed",
        ),
        (&["account", "show", "bob"], "there is no account"),
        (&["account", "quota", "alice"], "required"),
        (&["account", "retire-key", "alice", "77"], "has no key 77"),
        (&["usage", "--since", "2026-02-30"], "no day"),
    ] {
        issuer(&config, arguments).assert_failed(2, &[sentence]);
    }
    assert_eq!(said(&config, &["account", "list"]), "alice  3/1d\n");
    running.process.terminate().assert_stopped();
    run(["issuer"]).assert_failed(2, &["--config"]);
}
