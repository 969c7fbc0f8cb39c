//! An issuer's accounts as an operator handles them: by commands, on an issuer that runs and on one that does not.

mod authorizer;
mod certificates;
mod kills;
mod million;
mod page;
mod postgres;
mod refusals;
mod tiers;

use crate::support::accounts::{mint, token_request};
use crate::support::daemon::{Daemon, apply, client_config, declared, gateway_config, issuer_config};
use crate::support::faketime::Clock;
use crate::support::process::{Ended, run};
use crate::support::proxy::{connect, dial};
use crate::support::{eventually, target};
use rusqlite::types::Value as SqlValue;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// `postern issuer ARGUMENTS --config CONFIG`.
pub(super) fn issuer(config: &Path, arguments: &[&str]) -> Ended {
    let config = config.to_str().unwrap();
    run(["issuer"].iter().chain(arguments).chain(&["--config", config]))
}

/// Runs a command that succeeds, and returns its output.
pub(super) fn said(config: &Path, arguments: &[&str]) -> String {
    let ended = issuer(config, arguments);
    ended.assert_stopped();
    ended.stdout
}

/// The lines of JSON of a command that succeeds.
pub(super) fn json(config: &Path, arguments: &[&str]) -> Vec<Value> {
    let text = said(config, &[arguments, &["--json"]].concat());
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Makes an account; its API key.
pub(super) fn add(config: &Path, name: &str, quota: &str) -> String {
    add_with(config, name, &["--quota", quota])
}

/// The same with these terms.
pub(super) fn add_with(config: &Path, name: &str, terms: &[&str]) -> String {
    let lines = json(config, &[&["account", "add", name], terms].concat());
    lines[0]["api_key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_change_a_running_issuer_at_once_and_the_files_of_a_stopped_one() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "[[tiers]]\nname = \"gold\"\nquota = \"9/1d\"\n");
    // Before the first start.
    let key = add(&config, "alice", "3/36500d");
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, &key).assert_stopped();
    mint(&running, "postern_x").assert_failed(70, &["401", "damaged"]);
    said(&config, &["account", "disable", "alice"]);
    let disabled = mint(&running, &key);
    disabled.assert_failed(70, &["403", "This account is disabled", "only the issuer's operator"]);
    assert!(!disabled.stderr.contains("check the account's key"), "{disabled:?}");
    assert!(disabled.stderr.ends_with(" No token was written\n"), "{disabled:?}");
    said(&config, &["account", "enable", "alice"]);
    said(&config, &["account", "quota", "alice", "--expires", "2001-01-01"]);
    mint(&running, &key).assert_failed(70, &["403", "This account has expired"]);
    said(&config, &["account", "quota", "alice", "2/36500d", "--expires", "never", "--tier", "gold"]);
    let new = json(&config, &["account", "rotate-key", "alice", "--grace", "0s"]);
    let new = new[0]["api_key"].as_str().unwrap();
    mint(&running, &key).assert_failed(70, &["401", "This API key is retired"]);
    mint(&running, new).assert_stopped();
    mint(&running, new).assert_failed(70, &["429", "quota is spent"]);
    let shown = &json(&config, &["account", "show", "alice"])[0];
    assert_eq!(
        (&shown["name"], &shown["quota"], &shown["tier"]),
        (&"alice".into(), &"2/36500d".into(), &"gold".into())
    );
    assert_eq!(shown["usage"][0]["tokens"], 2);
    running.process.terminate().assert_stopped();

    let text = said(&config, &["account", "list"]);
    assert_eq!(text, "alice  2/36500d  tier gold\n");
    said(&config, &["account", "quota", "alice", "4/36500d", "--rate", "1", "--burst", "1"]);
    let usage = said(&config, &["usage"]);
    assert_eq!(
        usage,
        "account,period_begins,period_ends,tokens\r\nalice,1970-01-01T00:00:00Z,2069-12-07T00:00:00Z,2\r\n"
    );
    let running = Daemon::ready("issuer", &config).await;
    let request = token_request(&running, new).await;
    let (one, other) = tokio::join!(request.try_clone().unwrap().send(), request.send());
    let (one, other) = (one.unwrap(), other.unwrap());
    let (given, refused) = if one.status() == 200 { (one, other) } else { (other, one) };
    assert_eq!((given.status().as_u16(), refused.status().as_u16()), (200, 429));
    let text = refused.text().await.unwrap();
    assert!(text.contains("faster than it may"), "{text}");
    said(&config, &["account", "remove", "alice"]);
    mint(&running, new).assert_failed(70, &["401", "not one of this issuer's"]);
    let json = said(&config, &["usage", "--format", "json", "--account", "alice"]);
    assert!(json.contains("\"tokens\":3"), "the usage stays: {json}");
    // Names of accounts and keys are nowhere in the log.
    let log = running.process.terminate().stderr;
    assert!(![&key, new, "alice"].iter().any(|secret| log.contains(*secret)), "{log}");
}

/// A terminal keeps what it has shown, and so may the log of a script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_goes_to_a_file_and_not_to_the_terminal() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let running = Daemon::ready("issuer", &config).await;
    let at = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let urls = ["--gateway", "https://proxy.example", "--issuer", "https://issuer.example"];
    let [first, join, next] = ["alice.key", "bob.join", "alice-2.key"].map(at);
    for (file, holds, arguments) in [
        (&first, "postern_", &["account", "add", "alice", "--quota", "9/1d"][..]),
        (
            &join,
            "postern-join-1.",
            &[&["account", "add", "bob", "--quota", "9/1d", "--join"][..], &urls].concat(),
        ),
        (&next, "postern_", &["account", "rotate-key", "alice", "--keep"]),
    ] {
        let text = said(&config, &[arguments, &["--out", file]].concat());
        let written = std::fs::read_to_string(file).unwrap();
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
        assert!(written.starts_with(holds) && written.lines().count() == 1, "{arguments:?}");
        assert!(text.contains(file.as_str()) && !text.contains(&written[..24]), "{text}");
    }
    for key in [&first, &next] {
        mint(&running, std::fs::read_to_string(key).unwrap().trim()).assert_stopped();
    }

    // A file that exists stays, and then no account is made. No account leaves no file.
    let taken = issuer(&config, &["account", "add", "carol", "--quota", "9/1d", "--out", &first]);
    taken.assert_failed(2, &["cannot create", "Nothing was changed"]);
    issuer(&config, &["account", "show", "carol"]).assert_failed(2, &["there is no account"]);
    issuer(&config, &["account", "add", "alice", "--quota", "9/1d", "--out", &at("none")])
        .assert_failed(2, &["already"]);
    assert!(!home.path().join("none").exists());
    running.process.terminate().assert_stopped();
}

/// The quota's period is a century: the issuer's Retry-After keeps the agent away until its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_notices_a_raised_quota_within_five_minutes() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let key = add(&config, "alice", "1/36500d");
    let issuer = Daemon::ready("issuer", &config).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let agent_config = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let text = std::fs::read_to_string(&agent_config).unwrap();
    let text = text.replace("[issuer]\n", &format!("[issuer]\napi_key = \"{key}\"\n"));
    std::fs::write(&agent_config, text).unwrap();
    let clock = Clock::new(home.path());
    let agent = Daemon::of("client", clock.daemon("client", &agent_config));
    let echo = target::echo().await.to_string();
    let status = async || {
        let mut stream = dial(agent.address).await.unwrap();
        connect(&mut stream, &echo, None).await.unwrap().status
    };

    eventually("the only token opens a tunnel", async || (status().await == 200).then_some(())).await;
    assert_eq!(status().await, 503);
    said(&config, &["account", "quota", "alice", "9/36500d"]);
    assert_eq!(status().await, 503, "the agent has not returned to the issuer yet");
    clock.set("+5m");
    eventually("a new token opens a tunnel", async || (status().await == 200).then_some(())).await;
}

/// A thief of the files may know when issuer or gateway saw a token, and wants to know whose it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_has_no_time_and_no_byte_that_a_spend_could_be_joined_with() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let key = add(&config, "alice", "100/1h");
    let running = Daemon::ready("issuer", &config).await;
    let minted = mint(&running, &key);
    minted.assert_stopped();
    said(&config, &["account", "rotate-key", "alice", "--keep"]);
    running.process.terminate().assert_stopped();

    let folder = home.path().join("issuer");
    let now = i64::try_from(postern_token::UnixSeconds::now().0).unwrap();
    let rows = rows(&folder.join("accounts.sqlite"));
    for (table, values) in &rows {
        for value in values {
            let SqlValue::Integer(number) = value else { continue };
            let is_period = *table == "usage" && number % 3_600 == 0;
            assert!(is_period || (number - now).abs() > 86_400, "{table} has the time {number}");
        }
    }
    assert!(rows.iter().any(|(table, _)| table == "usage"));
    let token = minted.stdout.split('"').nth(1).unwrap();
    let hash = postern_token::ChallengeDigest::of(key.as_bytes()).0;
    let files = ["accounts.sqlite", "accounts.sqlite-wal"].map(|name| folder.join(name));
    for file in files.iter().filter(|file| file.exists()) {
        let bytes = std::fs::read(file).unwrap();
        for secret in [key.as_bytes(), &key.as_bytes()[8..40], &hash, &token.as_bytes()[..40]] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{}", file.display());
        }
    }
}

/// Every row of every table.
fn rows(path: &Path) -> Vec<(String, Vec<SqlValue>)> {
    let database = rusqlite::Connection::open(path).unwrap();
    let mut tables = database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let mut all = Vec::new();
    for table in tables {
        let mut statement = database.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            all.push((table.clone(), (0..columns).map(|column| row.get(column).unwrap()).collect()));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_declares_accounts_before_the_first_start_and_while_the_issuer_runs() {
    const KEYS: [&str; 2] = ["a-key-of-long-ago-4711", "another-key-of-long-ago-4711"];
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "[[tiers]]\nname = \"gold\"\nquota = \"9/36500d\"\n");
    let first = apply(&config, &declared("old", KEYS[0], "3/36500d"));
    first.assert_stopped();
    assert!(first.stdout.starts_with("added old\nThe accounts are as "), "{first:?}");
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, KEYS[0]).assert_stopped();
    let by_hand = add(&config, "by hand", "1/36500d");
    assert_eq!(apply(&config, &declared("old", KEYS[0], "3/36500d")).stdout.lines().count(), 1, "no change");

    let golden = declared("new", KEYS[1], "").replace("quota = \"\"", "tier = \"gold\"");
    let both = declared("old", KEYS[0], "1/36500d") + &golden;
    let said = apply(&config, &both).stdout;
    assert!(said.starts_with("changed old: quota\nadded new\n"), "{said}");
    mint(&running, KEYS[0]).assert_failed(70, &["429"]);
    mint(&running, KEYS[1]).assert_stopped();
    apply(&config, &both.replace("gold", "glod")).assert_failed(2, &["\"new\"", "choose one of \"gold\""]);
    apply(&config, &both.replace("name = \"new\"", "names = \"new\""))
        .assert_failed(64, &["accounts.toml, line 6", "names"]);
    assert!(apply(&config, &golden).stdout.starts_with("removed old\n"));
    mint(&running, KEYS[0]).assert_failed(70, &["not one of this issuer's"]);
    mint(&running, &by_hand).assert_stopped();
    assert_eq!(json(&config, &["account", "show", "old"])[0]["usage"][0]["tokens"], 1, "its usage stays");
    let log = running.process.terminate().stderr;
    assert!(!["old", "by hand", "new"].iter().any(|name| log.contains(&format!("{name:?}"))), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_taken_while_it_runs_restores_accounts_and_counts() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let key = add(&config, "alice", "5/36500d");
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, &key).assert_stopped();
    mint(&running, &key).assert_stopped();
    said(&config, &["account", "show", "alice"]); // the exact figure is on the disk, and two seconds later one more is reserved
    let copy = home.path().join("copy.sqlite");
    said(&config, &["backup", copy.to_str().unwrap()]);
    assert!(!home.path().join("copy.sqlite-wal").exists(), "the copy is one file");
    issuer(&config, &["backup", copy.to_str().unwrap()])
        .assert_failed(2, &["there is a file of this name", "left as it is", "name a new file"]);
    for _ in 2..5 {
        mint(&running, &key).assert_stopped();
    }
    running.kill();

    let keys = home.path().join("issuer");
    for file in ["accounts.sqlite", "accounts.sqlite-wal", "accounts.sqlite-shm"] {
        let _ = std::fs::remove_file(keys.join(file)); // not every one is there
    }
    std::fs::copy(&copy, keys.join("accounts.sqlite")).unwrap();
    let running = Daemon::ready("issuer", &config).await;
    let used = json(&config, &["account", "show", "alice"])[0]["usage"][0]["tokens"].as_i64().unwrap();
    assert!((2..=3).contains(&used), "{used}, and not as of the backup");
    for _ in used..5 {
        mint(&running, &key).assert_stopped();
    }
    mint(&running, &key).assert_failed(70, &["429"]);
    running.process.terminate().assert_stopped();
}
