//! Tests of authorization and counting, without a server.

use super::control::desk::Desk;
use super::control::{
    AccountChange, AccountRequest, AccountView, DeclaredAccount, Edit, KeptIn, KeyHash, Line, Refused, Terms,
};
use super::*;
use crate::quota::{Change, NoCharge, Usage};
use api_key::sha256;
use both_engines::store;
use http::HeaderMap;
use http::HeaderValue;
use http::header::AUTHORIZATION;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

mod both_engines;
mod certificates;
mod declared;
mod tiers;

fn account(name: &str, key: &str, quota: &str) -> DeclaredAccount {
    DeclaredAccount {
        name: name.to_owned(),
        key_sha256: Some(KeyHash(sha256(key.as_bytes()))),
        quota: Some(quota.parse().unwrap()),
        ..DeclaredAccount::default()
    }
}

fn headers(values: &[&str]) -> HeaderMap {
    let values = values.iter().map(|value| (AUTHORIZATION, HeaderValue::from_str(value).unwrap()));
    values.collect()
}

/// Opens accounts, and applies `declared` to them.
fn open(declared: &[DeclaredAccount], directory: &TempDir) -> Accounts {
    let accounts = Accounts::open(Configured::default(), store(directory.path())).unwrap();
    if !declared.is_empty() {
        apply(&accounts, declared).unwrap();
    }
    accounts
}

/// Applies a file's declarations with `--prune`.
fn apply(accounts: &Accounts, declared: &[DeclaredAccount]) -> Result<Vec<Line>, Refused> {
    ask(accounts, AccountRequest::Apply { accounts: declared.to_vec(), prune: true })
}

async fn caller(accounts: &Accounts, key: &str) -> Result<Caller, NoAccount> {
    accounts.authorize(&headers(&[&format!("Bearer {key}")]), None, None, UnixSeconds::now()).await
}

async fn refusal(accounts: &Accounts, key: &str) -> Option<NoAccount> {
    caller(accounts, key).await.err()
}

/// Charges one token to the account of `key`, and writes the database as needed. `None` if the key is refused.
async fn charge(accounts: &Accounts, key: &str) -> Option<bool> {
    let Ok(Caller::Account(holder)) = caller(accounts, key).await else { return None };
    loop {
        match holder.meter.charge(1, UnixSeconds::now()).map(Charge::keep) {
            Err(NoCharge::Unreserved) => {
                let _waiting = holder.meter.wait(1);
                accounts.ledger.write(vec![holder.clone()], Writing::Reserve).unwrap();
            }
            charged => return Some(charged.is_ok()),
        }
    }
}

fn settle(accounts: &Accounts) {
    accounts.ledger.write(accounts.active.holders(), Writing::Exact).unwrap();
}

/// Returns the answer of a running issuer to an operator's request.
fn ask(accounts: &Accounts, request: AccountRequest) -> Result<Vec<Line>, Refused> {
    let mut lines = Vec::new();
    let configured = accounts.configured.load_full();
    let now = UnixSeconds::now();
    let desk = Desk { store: &accounts.store, configured: &configured, running: Some(accounts), now };
    desk.answer(request, &mut |line| {
        lines.push(line);
        Ok(())
    })
    .unwrap();
    match lines.pop() {
        Some(Line::Done) => Ok(lines),
        Some(Line::Failed(refused)) => Err(refused),
        other => panic!("an answer ends with {other:?}"),
    }
}

fn terms(quota: &str) -> Terms {
    Terms { quota: Some(quota.parse().unwrap()), burst: None, tier: None, expires_at: None }
}

fn key_of(lines: &[Line]) -> String {
    let key = lines.iter().find_map(|line| if let Line::ApiKey(key) = line { Some(key) } else { None });
    key.unwrap().clone()
}

fn add(accounts: &Accounts, name: &str, quota: &str) -> String {
    key_of(
        &ask(
            accounts,
            AccountRequest::Add { name: name.to_owned(), terms: terms(quota), certificates: Vec::new() },
        )
        .unwrap(),
    )
}

fn show(accounts: &Accounts, name: &str) -> AccountView {
    let lines = ask(accounts, AccountRequest::Show { name: name.to_owned() }).unwrap();
    let [Line::Account(view)] = lines.as_slice() else { panic!("{lines:?}") };
    view.clone()
}

fn change(name: &str) -> AccountRequest {
    let name = name.to_owned();
    AccountRequest::Change {
        name,
        quota: Edit::Keep,
        burst: Edit::Keep,
        tier: Edit::Keep,
        expires_at: Edit::Keep,
    }
}

#[tokio::test]
async fn only_one_bearer_field_with_a_known_key_is_an_account() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[account("one", "k1", "1/1d")], &directory);
    let refusal =
        async |values: &[&str]| accounts.authorize(&headers(values), None, None, UnixSeconds(0)).await.err();
    assert_eq!(refusal(&["Bearer k1"]).await, None);
    assert_eq!(refusal(&["bearer  k1 "]).await, None);
    for missing in [&[][..], &["Bearer"], &["Bearer "], &["Basic k1"], &["k1"], &["Bearer k1", "Bearer k1"]] {
        assert_eq!(refusal(missing).await, Some(NoAccount::Missing), "{missing:?}");
    }
    for unknown in ["Bearer k", "Bearer k11", "Bearer K1", "Bearer k1, Bearer k1"] {
        assert_eq!(refusal(&[unknown]).await, Some(NoAccount::Unknown), "{unknown}");
    }
}

#[tokio::test]
async fn counts_survive_in_private_files() {
    let directory = tempfile::tempdir().unwrap();
    let configured = [account("one", "k1", "2/1d"), account("two", "k2", "1/1h")];
    let first = open(&configured, &directory);
    assert_eq!(charge(&first, "k1").await, Some(true));
    settle(&first);
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
    drop(first);
    let second = open(&configured, &directory);
    assert_eq!(charge(&second, "k1").await, Some(true));
    assert_eq!(charge(&second, "k1").await, Some(false));
}

#[tokio::test]
async fn an_account_is_added_and_every_change_counts_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    assert!(matches!(
        accounts.authorize(&HeaderMap::new(), None, None, UnixSeconds(0)).await,
        Ok(Caller::Anyone)
    ));
    let key = add(&accounts, "alice", "2/1d");
    assert!(key.starts_with("postern_") && !accounts.is_open());
    let bare = accounts.authorize(&HeaderMap::new(), None, None, UnixSeconds(0)).await;
    assert_eq!(bare.err(), Some(NoAccount::Missing));
    assert_eq!(charge(&accounts, &key).await, Some(true));

    let enabled = |enabled| AccountRequest::SetEnabled { name: "alice".to_owned(), enabled };
    ask(&accounts, enabled(false)).unwrap();
    assert_eq!(refusal(&accounts, &key).await, Some(NoAccount::Disabled));
    assert!(!show(&accounts, "alice").enabled);
    ask(&accounts, enabled(true)).unwrap();
    assert_eq!((charge(&accounts, &key).await, charge(&accounts, &key).await), (Some(true), Some(false)));

    let AccountRequest::Change { name, burst, tier, .. } = change("alice") else { unreachable!() };
    let (quota, over) = (Edit::Set("3/1d".parse().unwrap()), Edit::Set(UnixSeconds(1)));
    ask(&accounts, AccountRequest::Change { name, quota, burst, tier, expires_at: over }).unwrap();
    assert_eq!(refusal(&accounts, &key).await, Some(NoAccount::Expired));
    let AccountRequest::Change { name, quota, burst, tier, .. } = change("alice") else { unreachable!() };
    ask(&accounts, AccountRequest::Change { name, quota, burst, tier, expires_at: Edit::Clear }).unwrap();
    assert_eq!((charge(&accounts, &key).await, charge(&accounts, &key).await), (Some(true), Some(false)));

    let view = show(&accounts, "alice");
    assert_eq!((view.kept_in, view.keys.len()), (KeptIn::Database, 1));
    assert_eq!(view.terms, Some(terms("3/1d")));
    assert_eq!(view.usage.iter().map(|row| row.tokens).collect::<Vec<_>>(), [3], "the exact figure");
}

#[tokio::test]
async fn a_removed_account_is_unknown_and_comes_back_with_what_it_had_used() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let key = add(&accounts, "alice", "2/1d");
    assert_eq!(charge(&accounts, &key).await, Some(true));
    ask(&accounts, AccountRequest::Remove { name: "alice".to_owned() }).unwrap();
    assert_eq!(refusal(&accounts, &key).await, Some(NoAccount::Unknown));
    assert!(!accounts.is_open(), "without an account nobody gets tokens");
    assert_eq!(show(&accounts, "alice").kept_in, KeptIn::Removed);
    let again = add(&accounts, "alice", "2/1d");
    assert_eq!((charge(&accounts, &again).await, charge(&accounts, &again).await), (Some(true), Some(false)));
    drop(accounts);
    let restarted = open(&[], &directory);
    assert!(!restarted.is_open());
    assert_eq!(charge(&restarted, &again).await, Some(false));
    assert!(restarted.store.with(super::store::needs_account).unwrap());
}

#[tokio::test]
async fn a_rotated_key_is_good_for_the_grace_and_then_told_from_an_unknown_one() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let first = add(&accounts, "alice", "100/1d");
    let rotate = |grace_seconds| {
        key_of(
            &ask(&accounts, AccountRequest::RotateKey { name: "alice".to_owned(), grace_seconds }).unwrap(),
        )
    };
    let second = rotate(Some(3_600));
    assert_eq!((refusal(&accounts, &first).await, refusal(&accounts, &second).await), (None, None));
    let bearer = headers(&[&format!("Bearer {first}")]);
    let later = UnixSeconds::now().saturating_add(Duration::from_secs(3_601));
    assert_eq!(accounts.authorize(&bearer, None, None, later).await.err(), Some(NoAccount::Retired));
    let third = rotate(None);
    assert_eq!((refusal(&accounts, &second).await, refusal(&accounts, &third).await), (None, None));
    let fourth = rotate(Some(0));
    for (key, refused) in [(&first, true), (&second, true), (&third, true), (&fourth, false)] {
        assert_eq!(refusal(&accounts, key).await, refused.then_some(NoAccount::Retired));
    }
    let newest = show(&accounts, "alice").keys.last().unwrap().id;
    ask(&accounts, AccountRequest::RetireKey { name: "alice".to_owned(), key: newest }).unwrap();
    assert_eq!(refusal(&accounts, &fourth).await, Some(NoAccount::Retired));
    // The number of an account's keys is bounded, however often keys are rotated.
    (0..40).for_each(|_| drop(rotate(Some(0))));
    assert!(show(&accounts, "alice").keys.len() <= 8);
    (0..7).for_each(|_| drop(rotate(None)));
    let request = AccountRequest::RotateKey { name: "alice".to_owned(), grace_seconds: None };
    assert!(ask(&accounts, request).unwrap_err().sentence.contains("8 keys"));
}

#[tokio::test]
async fn what_another_program_changes_in_the_database_counts_after_the_next_look() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let key = add(&accounts, "alice", "2/1d");
    let mut maintenance = Maintenance { due: Instant::now(), seen: None };
    accounts.maintain_now(&mut maintenance).unwrap();
    assert_eq!(refusal(&accounts, &key).await, None);
    let shell = rusqlite::Connection::open(directory.path().join(FILE_NAME)).unwrap();
    shell.execute("UPDATE accounts SET enabled = 0", []).unwrap();
    assert_eq!(refusal(&accounts, &key).await, None, "it is in memory");
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER TABLE {from} RENAME TO {to}");
        accounts.store.with(|connection| connection.batch(&sql)).unwrap();
    };
    rename("settings", "hidden");
    accounts.maintain_now(&mut maintenance).unwrap_err();
    rename("hidden", "settings"); // the issuer's own change: only a second look takes up the program's
    accounts.maintain_now(&mut maintenance).unwrap();
    assert_eq!(refusal(&accounts, &key).await, Some(NoAccount::Disabled));
}

#[test]
fn a_reading_from_before_the_first_account_does_not_open_the_issuer() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    accounts.needs_account.store(true, Ordering::Release); // as if an account had been added since
    accounts.take_up_database().unwrap();
    assert!(!accounts.is_open());
}

#[tokio::test]
async fn an_account_leaves_memory_when_it_is_idle_and_written_down_and_strangers_never_enter_it() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let key = add(&accounts, "alice", "100/1d");
    for guess in 0..1_000 {
        assert_eq!(refusal(&accounts, &format!("guess-{guess}")).await, Some(NoAccount::Unknown));
    }
    assert_eq!(accounts.active.let_go(), 0);
    assert_eq!(charge(&accounts, &key).await, Some(true));
    assert!((0..40).all(|_| accounts.active.let_go() == 1), "it is not written down");
    settle(&accounts);
    let holder = accounts.active.holder("alice").unwrap();
    assert!((0..40).all(|_| accounts.active.let_go() == 1), "a request holds it");
    drop(holder);
    assert_eq!(accounts.active.let_go(), 0);
    assert_eq!(charge(&accounts, &key).await, Some(true));
    settle(&accounts);
    assert_eq!(show(&accounts, "alice").usage[0].tokens, 2);
}

#[test]
fn names_that_a_terminal_or_a_spreadsheet_would_misread_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let long = "a".repeat(129);
    for name in ["", "=1+1", "-x", " a", "a\u{1b}[2J", "a\nb", "ecila\u{202e}alice", &long] {
        let refused = ask(
            &accounts,
            AccountRequest::Add { name: name.to_owned(), terms: terms("1/1d"), certificates: Vec::new() },
        )
        .unwrap_err();
        assert!(refused.sentence.contains("no name"), "{name:?}: {refused}");
    }
    assert!(accounts.is_open());
}

#[test]
fn past_periods_are_merged_into_days_and_removed_in_time() {
    const DAY: u64 = 86_400;
    let directory = tempfile::tempdir().unwrap();
    let accounts = open(&[], &directory);
    let row = |start: u64, period_seconds: u64, tokens: u64| {
        (Usage { window_start: UnixSeconds(start), period_seconds, used: 0 }, tokens)
    };
    let written = [
        row(0, DAY, 5),
        row(100 * DAY, 3_600, 1),
        row(100 * DAY + 3_600, 3_600, 2),
        row(100 * DAY, DAY, 4),
        row(101 * DAY, 3_600, 8),
        row(101 * DAY - 2 * 3_600, 7 * 3_600, 32),
        row(0, 36_500 * DAY, 16),
    ];
    accounts
        .store
        .with(|connection| {
            written.iter().try_for_each(|(window, tokens)| {
                let change = Change { window: *window, reserve: *tokens, give_back: 0, limit: u64::MAX };
                usage::change(connection, "one", change).map(drop)
            })
        })
        .unwrap();
    let maintenance = |now: u64, kept_since: u64| {
        accounts
            .store
            .with(|connection| usage::maintain(connection, UnixSeconds(now), UnixSeconds(kept_since)))
            .unwrap();
        let rows =
            accounts.store.with(|connection| usage::of_account(connection, "one", UnixSeconds(0))).unwrap();
        rows.iter()
            .map(|row| (row.period_start.0 / DAY, row.period_seconds / 3_600, row.tokens))
            .collect::<Vec<_>>()
    };
    let night = (100, 7, 32);
    let all = [(0, 24, 5), (0, 876_000, 16), (100, 1, 1), (100, 24, 4), (100, 1, 2), night, (101, 1, 8)];
    assert_eq!(maintenance(101 * DAY + 3_599, 0), all, "meters may still write their last figure");
    let merged = [(0, 24, 5), (0, 876_000, 16), (100, 24, 7), night, (101, 1, 8)];
    assert_eq!(maintenance(101 * DAY + 3_600, 0), merged, "a period of seven hours is not over at one");
    assert_eq!(maintenance(101 * DAY + 3_601, 0), merged, "once");
    assert_eq!(maintenance(101 * DAY + 3_602, 2 * DAY), merged[1..]);
    assert_eq!(maintenance(102 * DAY + 3_600, 2 * DAY), [(0, 876_000, 16), (100, 24, 39), (101, 24, 8)]);
}
