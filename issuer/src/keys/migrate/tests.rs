use super::*;
use crate::config::{AccountsConfig, Keys};
use crate::keys::KeyStore;
use crate::rotation::Schedule;
use postern_testkit::postgres::Postgres;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn config(home: &Path, postgres: &Postgres) -> Config {
    let passphrase = home.join("passphrase");
    std::fs::write(&passphrase, "a passphrase of this test\n").unwrap();
    std::fs::set_permissions(&passphrase, std::fs::Permissions::from_mode(0o600)).unwrap();
    let directory = home.join("keys");
    let keys = Keys { passphrase_file: Some(passphrase), ..Keys::under(&directory) };
    let accounts = AccountsConfig { database: Some(postgres.url("")), password_file: None };
    Config { accounts, ..Config::with_keys(&keys) }
}

/// Each way, between the copy and the removal.
#[test]
fn an_interrupted_migration_is_finished_by_another_run() {
    let (postgres, home) = (Postgres::start(&[]), TempDir::new().unwrap());
    let config = config(home.path(), &postgres);
    let lock = DataDir::open(&config.keys.directory).unwrap();
    let mut store = KeyStore::of(lock, AtRest::of(&config.keys).unwrap(), None).unwrap();
    store.rotate(&Schedule::TEST, UnixSeconds::now()).unwrap();
    drop(store);
    let sqlite = |sql: &str| {
        let path = config.keys.directory.join(FILE_NAME);
        Connection::Sqlite(open_database(&path).unwrap()).batch(sql).unwrap();
    };
    sqlite(
        "INSERT INTO accounts (name, quota_tokens, quota_period_seconds) VALUES ('alice', 5, 60); \
         INSERT INTO usage VALUES (0, 60, 'alice', 3)",
    );
    for (to, other) in
        [(MigrateTo::Postgres, MigrateTo::Sqlite), (MigrateTo::Sqlite, MigrateTo::Postgres)].repeat(2)
    {
        let interrupted = Migration::open(&config, to).unwrap();
        interrupted.copy().unwrap();
        drop(interrupted);
        let refused = migrate(&config, other).unwrap_err().to_string();
        assert!(refused.contains("the target has accounts already"), "{refused}");
        assert_eq!(migrate(&config, to).unwrap(), 1);
        let is_there = to == MigrateTo::Postgres;
        let rows =
            "SELECT (SELECT count(*) FROM usage), (SELECT count(*) FROM token_keys WHERE name LIKE '%.p8')";
        assert_eq!(postgres.sql(rows), [if is_there { "1|1" } else { "0|0" }]);
        assert_eq!(config.keys.directory.join(SECRET_FILE).exists(), !is_there);
        assert_eq!(postgres.sql("SELECT 1 FROM settings WHERE name = 'migrated_from'"), [""; 0]);
    }
}

#[test]
fn a_source_that_was_used_after_its_copy_is_not_emptied() {
    let (postgres, home) = (Postgres::start(&[]), TempDir::new().unwrap());
    let config = config(home.path(), &postgres);
    drop(DataDir::open(&config.keys.directory).unwrap());
    let interrupted = Migration::open(&config, MigrateTo::Postgres).unwrap();
    interrupted.copy().unwrap();
    interrupted.sqlite.batch("INSERT INTO usage VALUES (0, 60, 'alice', 3)").unwrap();
    drop(interrupted);
    let refused = migrate(&config, MigrateTo::Postgres).unwrap_err().to_string();
    assert!(refused.contains("the source was used after it"), "{refused}");
    assert!(config.keys.directory.join(FILE_NAME).exists());
}
