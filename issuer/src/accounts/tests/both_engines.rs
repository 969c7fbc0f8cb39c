//! All tests of accounts over PostgreSQL: this program runs itself with a server's URL in the environment.

use super::super::api_key::{KeySecret, SECRET_FILE};
use super::*;
use crate::config::AccountsConfig;
use crate::database::Connection;
use crate::database::postgres::{Server, Session};
use crate::quota::Quota;
use postern_testkit::postgres::Postgres;
use std::path::Path;
use std::process::Command;

const URL: &str = "ISSUER_TEST_DATABASE";
/// What is of SQLite's files alone.
const OF_FILES: [&str; 3] =
    ["both_engines", "counts_survive_in_private_files", "what_another_program_changes"];

fn server_at(url: String) -> Arc<Server> {
    Server::of(&AccountsConfig { database: Some(url), password_file: None }).unwrap().unwrap()
}

fn session(server: &Arc<Server>) -> Connection {
    Connection::Postgres(Session::new(server.clone()))
}

/// Opens the store of `server` with the secret in a directory, which is made if there is none.
fn shared(server: &Arc<Server>, directory: &Path) -> Store {
    let path = directory.join(SECRET_FILE);
    let secret = KeySecret::read(&path).unwrap().unwrap_or_else(|| KeySecret::make(&path).unwrap());
    Store::shared(server.clone(), secret).unwrap()
}

/// Opens the store of a directory: SQLite in it, or a schema of its own in the server.
pub(super) fn store(directory: &Path) -> Store {
    let Ok(url) = std::env::var(URL) else { return Store::open(directory).unwrap() };
    let schema = format!("test_{}", hex::encode(&sha256(directory.as_os_str().as_encoded_bytes())[..8]));
    let statement = format!("CREATE SCHEMA IF NOT EXISTS {schema}");
    session(&server_at(url.clone())).batch(&statement).unwrap();
    shared(&server_at(format!("{url}&options=-c%20search_path%3D{schema}")), directory)
}

/// Each change reads the row, and writes it: without a lock on the row, one of two at once would be lost.
#[test]
fn issuers_that_reserve_at_once_reserve_the_quota_exactly() {
    const ISSUERS: u64 = 4;
    const CHANGES: u64 = 400;
    const QUOTA: u64 = ISSUERS * CHANGES / 2;
    let (postgres, directory) = (Postgres::start(&[]), TempDir::new().unwrap());
    let server = server_at(postgres.url(""));
    let _tables = shared(&server, directory.path());
    let window = Usage { window_start: UnixSeconds(0), period_seconds: 60, used: 0 };
    let reserved = std::thread::scope(|scope| {
        let issuer = || {
            let connection = session(&server);
            let change = Change { window, reserve: 1, give_back: 0, limit: QUOTA };
            let reserve =
                |_| connection.transact(|it| usage::change(it, "account", change)).map(|done| done.1);
            (0..CHANGES).map(reserve).sum::<crate::database::Result<u64>>().unwrap()
        };
        let issuers: Vec<_> = (0..ISSUERS).map(|_| scope.spawn(issuer)).collect();
        issuers.into_iter().map(|issuer| issuer.join().unwrap()).sum::<u64>()
    });
    assert_eq!(reserved, QUOTA);
}

/// A change reads an account and writes all of it.
#[test]
fn issuers_that_change_an_account_at_once_lose_no_change() {
    let (postgres, directory) = (Postgres::start(&[]), TempDir::new().unwrap());
    let server = server_at(postgres.url(""));
    let open = || Accounts::open(Configured::default(), shared(&server, directory.path())).unwrap();
    let (one, other) = (open(), open());
    apply(&one, &[account("alice", "key", "1/1d")]).unwrap();
    for round in 2..60_u64 {
        let (enabled, quota): (bool, Quota) = (round % 2 == 0, format!("{round}/1d").parse().unwrap());
        let name = || "alice".to_owned();
        let change = AccountRequest::Change {
            name: name(),
            quota: Edit::Set(quota),
            burst: Edit::Keep,
            tier: Edit::Keep,
            expires_at: Edit::Keep,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| ask(&one, AccountRequest::SetEnabled { name: name(), enabled }).unwrap());
            scope.spawn(|| ask(&other, change).unwrap());
        });
        let lines = ask(&one, AccountRequest::Show { name: name() }).unwrap();
        let view =
            lines.iter().find_map(|line| if let Line::Account(view) = line { Some(view) } else { None });
        let view = view.unwrap();
        assert_eq!(
            (view.enabled, view.terms.as_ref().unwrap().quota),
            (enabled, Some(quota)),
            "round {round}"
        );
    }
}

#[test]
fn the_tests_of_accounts_pass_over_postgresql() {
    let server = Postgres::start(&[]);
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["accounts::tests::", "--test-threads", "2"]).env(URL, server.url(""));
    OF_FILES.iter().for_each(|name| _ = tests.args(["--skip", name]));
    let output = tests.output().unwrap();
    let written = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !written.contains("running 0 tests"), "{written}");
}
