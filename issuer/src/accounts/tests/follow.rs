//! Issuers that follow another one, and changes of shares.

use super::*;
use crate::accounts::api_key::SECRET_FILE;
use crate::accounts::control::backup;
use crate::accounts::follow::Signature;
use crate::config::GroupConfig;
use std::fs::{copy, read, write};
use std::path::{Path, PathBuf};

/// The first issuer, a follower, and the homes of the first, of the copies and of the follower.
struct Scene {
    homes: [TempDir; 3],
    first: Accounts,
    follower: Accounts,
}

fn following(copies: &Path) -> Configured {
    let share = "1/2".parse().unwrap();
    let group = GroupConfig { name: "issuers".to_owned(), share, follow: Some(copies.to_owned()) };
    Configured { group: Some(group), ..Configured::default() }
}

impl Scene {
    fn new() -> Self {
        let homes = [(); 3].map(|()| TempDir::new().unwrap());
        let open = |home: &TempDir, configured| Accounts::open(configured, home.path()).unwrap();
        let first = open(&homes[0], Configured::default());
        let follower = open(&homes[2], following(homes[1].path()));
        Self { homes, first, follower }
    }

    fn copied(&self) -> PathBuf {
        self.homes[1].path().join(FILE_NAME)
    }

    fn copy_secret(&self) {
        copy(self.homes[0].path().join(SECRET_FILE), self.homes[1].path().join(SECRET_FILE)).unwrap();
    }

    fn copy(&self) {
        let _ = std::fs::remove_file(self.copied()); // absent at first
        backup(self.homes[0].path(), &self.copied()).unwrap();
        self.copy_secret();
    }

    fn look(&self) -> Result<(), AccountsError> {
        let path = self.copied();
        self.follower.take_up_copy(&path, Signature::of(&path).unwrap())
    }

    fn dump(accounts: &Accounts) -> Vec<String> {
        let tables = ["accounts", "api_keys", "client_certificates"];
        let rows = |table: &str| {
            accounts.store.with(|connection| {
                let mut statement = connection.prepare(&format!("SELECT * FROM {table} ORDER BY id"))?;
                let columns = statement.column_count();
                let row = |row: &rusqlite::Row<'_>| {
                    let value = |column| row.get::<_, rusqlite::types::Value>(column).unwrap();
                    Ok(format!("{table} {:?}", (0..columns).map(value).collect::<Vec<_>>()))
                };
                statement.query_map([], row)?.collect::<rusqlite::Result<Vec<_>>>()
            })
        };
        tables.into_iter().flat_map(|table| rows(table).unwrap()).collect()
    }

    fn assert_same(&self) {
        assert_eq!(Self::dump(&self.first), Self::dump(&self.follower));
    }

    /// Backdates the share, as if the follower had joined in an earlier period.
    fn join_long_ago(&self) {
        self.follower.store.with(|own| own.execute("UPDATE shares SET since_unix = 1", [])).unwrap();
        self.follower.take_up_configured(&following(self.homes[1].path())).unwrap();
    }
}

#[tokio::test]
async fn accounts_are_the_first_issuers_after_each_copy_and_nobody_is_let_in_before() {
    let scene = Scene::new();
    assert_eq!(refusal(&scene.follower, "any").await, Some(NoAccount::Unreadable), "and not: no such key");
    let (alice, bob) = (add(&scene.first, "alice", "8/10000d"), add(&scene.first, "bob", "5/10000d"));
    scene.copy();
    scene.look().unwrap();
    scene.assert_same();
    assert_eq!(charge(&scene.follower, &alice).await, Some(false), "it joined in this period");
    scene.join_long_ago();
    for _ in 0..4 {
        assert_eq!(charge(&scene.follower, &alice).await, Some(true));
    }
    assert_eq!(charge(&scene.follower, &alice).await, Some(false), "half of 8 is 4");

    ask(&scene.first, AccountRequest::SetEnabled { name: "bob".to_owned(), enabled: false }).unwrap();
    ask(&scene.first, AccountRequest::Remove { name: "alice".to_owned() }).unwrap();
    let again = add(&scene.first, "alice", "8/10000d");
    scene.copy();
    scene.look().unwrap();
    scene.assert_same();
    assert_eq!(refusal(&scene.follower, &alice).await, Some(NoAccount::Unknown));
    assert_eq!(refusal(&scene.follower, &bob).await, Some(NoAccount::Disabled));
    assert_eq!(charge(&scene.follower, &again).await, Some(false), "what was used here stays used");
    scene.look().unwrap();
    scene.assert_same();
}

#[tokio::test]
async fn a_copy_that_is_torn_older_or_in_use_is_refused_and_what_was_there_stays() {
    let scene = Scene::new();
    let key = add(&scene.first, "alice", "8/10000d");
    scene.copy();
    let old = read(scene.copied()).unwrap();
    (0..50).for_each(|number| drop(add(&scene.first, &format!("account {number}"), "1/1d")));
    scene.copy();
    scene.look().unwrap();
    let whole = read(scene.copied()).unwrap();
    let before = Scene::dump(&scene.follower);
    let mut mixed = whole.clone();
    mixed[8_192..16_384].copy_from_slice(&old[4_096..12_288]);
    for (bytes, said) in [
        (&whole[..0], "copy"),
        (&whole[..50], "shorter than any database"),
        (&whole[..whole.len() - 1], "not whole"),
        (&whole[..whole.len() / 2], "not whole"),
        (&mixed, "not whole"),
        (&old, "older"),
    ] {
        write(scene.copied(), bytes).unwrap();
        let error = scene.look().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(Scene::dump(&scene.follower), before);
        assert_eq!(refusal(&scene.follower, &key).await, None);
    }
    copy(scene.homes[0].path().join(FILE_NAME), scene.copied()).unwrap();
    let error = scene.look().unwrap_err().to_string();
    assert!(error.contains("postern issuer backup FILE"), "{error}");
    let left = std::fs::read_dir(scene.homes[2].path()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.contains("copied")), "{left:?}");

    // A restored backup is taken up once it has the revision from the refusal.
    write(scene.copied(), &old).unwrap();
    let error = scene.look().unwrap_err().to_string();
    let statement = error.split('"').nth(1).unwrap();
    let restored = rusqlite::Connection::open(scene.copied()).unwrap();
    restored.execute_batch(statement).unwrap();
    drop(restored);
    scene.look().unwrap();
    assert_eq!(refusal(&scene.follower, &key).await, None);
}

#[tokio::test]
async fn a_secret_may_come_later_and_those_of_another_issuer_are_refused() {
    let scene = Scene::new();
    let key = add(&scene.first, "alice", "8/10000d");
    scene.copy();
    let secret = scene.homes[1].path().join(SECRET_FILE);
    std::fs::remove_file(&secret).unwrap();
    assert!(matches!(scene.look().unwrap_err(), AccountsError::Secret { .. }));
    scene.copy_secret();
    scene.look().unwrap();
    assert_eq!(refusal(&scene.follower, &key).await, None);

    let other = Scene::new();
    add(&other.first, "mallory", "8/10000d");
    other.copy();
    for name in [FILE_NAME, SECRET_FILE] {
        copy(other.homes[1].path().join(name), scene.homes[1].path().join(name)).unwrap();
    }
    let error = scene.look().unwrap_err().to_string();
    assert!(error.contains("another secret"), "{error}");
    scene.assert_same();
}

#[tokio::test]
async fn a_follower_changes_no_account_and_says_where_that_is_done() {
    let scene = Scene::new();
    add(&scene.first, "alice", "1/10000d");
    scene.copy();
    scene.look().unwrap();
    let requests = [
        AccountRequest::Remove { name: "alice".to_owned() },
        AccountRequest::SetEnabled { name: "alice".to_owned(), enabled: false },
        AccountRequest::RotateKey { name: "alice".to_owned(), grace_seconds: None },
        AccountRequest::Apply { accounts: vec![account("new", "key-new", "1/1d")], prune: false },
    ];
    for request in requests {
        let refused = ask(&scene.follower, request).unwrap_err();
        assert!(refused.sentence.contains("at the first issuer"), "{refused}");
    }
    let here = show(&scene.follower, "alice").here.unwrap();
    assert_eq!((here.quota.tokens(), here.next), (0, None), "half of one token is none, in any period");
}

#[tokio::test]
async fn a_share_that_is_lowered_counts_at_once_and_one_that_is_raised_does_not_also_after_a_restart() {
    let home = TempDir::new().unwrap();
    let listed = [account("alice", "key-alice", "10/10000d")];
    let with = |share: &str| {
        let group = GroupConfig { name: "issuers".to_owned(), share: share.parse().unwrap(), follow: None };
        Configured { group: Some(group), ..Configured::default() }
    };
    let reload = |accounts: &Accounts, share: &str| {
        accounts.take_up_configured(&with(share)).unwrap();
        accounts.replace(with(share));
    };
    let open = |configured| Accounts::open(configured, home.path()).unwrap();
    let first = open(Configured::default());
    apply(&first, &listed).unwrap();
    for _ in 0..3 {
        assert_eq!(charge(&first, "key-alice").await, Some(true));
    }
    reload(&first, "1/2");
    assert_eq!(charge(&first, "key-alice").await, Some(true));
    reload(&first, "1/1");
    assert_eq!(charge(&first, "key-alice").await, Some(true));
    assert_eq!(charge(&first, "key-alice").await, Some(false), "the smaller share counts in this period");
    settle(&first);
    drop(first);
    let again = open(with("1/1"));
    assert_eq!(charge(&again, "key-alice").await, Some(false), "and after a restart");
    // Simulates the next period by backdating the configured share.
    again.store.with(|own| own.execute("UPDATE shares SET since_unix = 1", [])).unwrap();
    reload(&again, "1/1");
    assert_eq!(charge(&again, "key-alice").await, Some(true));
}

#[test]
fn a_share_is_not_changed_if_the_rest_of_a_configuration_cannot_be_applied() {
    let home = TempDir::new().unwrap();
    let accounts = open(&[], &home);
    let read = || {
        let sql = "SELECT count(*) FROM shares";
        let rows =
            accounts.store.with(|connection| connection.query_row(sql, [], |row| row.get::<_, i64>(0)));
        (rows.unwrap(), accounts.shares.load().configured())
    };
    let before = read();
    let group = GroupConfig { name: "issuers".to_owned(), share: "1/2".parse().unwrap(), follow: None };
    let configured = Configured { group: Some(group), has_authorizer: true, ..Configured::default() };
    let hide = |sql: &str| accounts.store.with(|connection| connection.execute_batch(sql)).unwrap();
    hide("ALTER TABLE settings RENAME TO hidden");
    accounts.take_up_configured(&configured).unwrap_err();
    assert!(read() == before && accounts.is_open());
    hide("ALTER TABLE hidden RENAME TO settings");
    accounts.take_up_configured(&configured).unwrap();
    assert!(read() != before && !accounts.is_open());
}
