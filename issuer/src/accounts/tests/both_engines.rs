//! All tests of accounts over PostgreSQL: this program runs itself with a server's URL in the environment.

use super::super::api_key::{KeySecret, SECRET_FILE};
use super::*;
use crate::config::AccountsConfig;
use crate::database::postgres::{Server, Session};
use postern_testkit::postgres::Postgres;
use std::path::Path;
use std::process::Command;

const URL: &str = "ISSUER_TEST_DATABASE";
/// What is of SQLite's files alone.
const OF_FILES: [&str; 3] =
    ["both_engines", "counts_survive_in_private_files", "what_another_program_changes"];

/// Opens the store of a directory: SQLite in it, or a schema of its own in the server.
pub(super) fn store(directory: &Path) -> Store {
    let Ok(url) = std::env::var(URL) else { return Store::open(directory).unwrap() };
    let server = |database: String| {
        Server::of(&AccountsConfig { database: Some(database), password_file: None }).unwrap().unwrap()
    };
    let schema = format!("test_{}", hex::encode(&sha256(directory.as_os_str().as_encoded_bytes())[..8]));
    let session = crate::database::Connection::Postgres(Session::new(server(url.clone())));
    session.batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}")).unwrap();
    let path = directory.join(SECRET_FILE);
    let secret = KeySecret::read(&path).unwrap().unwrap_or_else(|| KeySecret::make(&path).unwrap());
    Store::shared(server(format!("{url}&options=-c%20search_path%3D{schema}")), secret).unwrap()
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
