//! `postern issuer key …` on an issuer that runs, on one that does not, and on one that is killed during the command.

use super::keys::{Keys, listed};
use crate::accounts::{issuer, json, said};
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::process::{Postern, command};
use crate::support::site::{AgentPlan, Plan, Site};
use crate::support::users::Users;
use crate::support::{admin, eventually, target, tokens};
use postern_token::{DIRECTORY_PATH, Directory, Token, TokenKeyId, TokenType, UnixSeconds};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const BUSY: AgentPlan = AgentPlan { name: "busy", gateways: &[0], low: 4, high: 8 };

/// The ids of the keys in a list, the newest first, each with its phase.
fn phases(list: &[Value]) -> Vec<(String, String)> {
    let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
    list.iter().map(|key| (text(key, "id"), text(key, "phase"))).collect()
}

fn list(config: &Path) -> Vec<(String, String)> {
    phases(&json(config, &["key", "list"]))
}

/// The ids in the directory of an issuer that runs: the key to use comes first.
async fn published(issuer: &Daemon) -> Vec<String> {
    let (_, body) = admin::get(issuer.address, DIRECTORY_PATH).await.unwrap();
    let directory = Directory::parse(body.as_bytes()).unwrap();
    let id = |spki: Vec<u8>| TokenKeyId::of(&spki).to_hex()[..8].to_owned();
    directory.token_keys.iter().map(|key| id(key.key_bytes().unwrap())).collect()
}

fn pair(id: &str, phase: &str) -> (String, String) {
    (id.to_owned(), phase.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_change_the_keys_of_a_running_issuer_at_once_and_the_files_of_a_stopped_one() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    assert_eq!(said(&config, &["key", "list"]), "There is none.\n");
    let running = Daemon::ready("issuer", &config).await;
    let [(first, _)] = list(&config).try_into().unwrap();
    assert_eq!(published(&running).await, std::slice::from_ref(&first));

    let [(second, _)] = phases(&json(&config, &["key", "rotate", "--in", "1h"])).try_into().unwrap();
    assert_eq!(published(&running).await, [first.clone(), second.clone()]);
    assert_eq!(list(&config), [pair(&second, "upcoming"), pair(&first, "newest")]);

    let out = home.path().join("copies");
    std::fs::create_dir(&out).unwrap();
    let export = ["key", "export", &first, out.to_str().unwrap()];
    assert!(said(&config, &export).contains("can issue tokens"));
    issuer(&config, &export).assert_failed(2, &["name a new file"]);
    let copy = std::fs::read_dir(&out).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);

    issuer(&config, &["key", "retire", &first]).assert_failed(2, &["Nothing was done", "--yes"]);
    issuer(&config, &["key", "retire", "01234567", "--yes"]).assert_failed(2, &["postern issuer key list"]);
    let [(third, _)] = phases(&json(&config, &["key", "retire", &first, "--yes"])).try_into().unwrap();
    assert_eq!(published(&running).await, [third.clone(), second.clone()]);
    let import = ["key", "import", copy.to_str().unwrap()];
    said(&config, &import);
    issuer(&config, &import).assert_failed(2, &["is here already"]);
    assert!(published(&running).await.contains(&first));
    said(&config, &["key", "retire", &first, "--yes"]);
    let log = running.kill().stderr;
    for line in [
        format!("made token key TokenKeyId({second}…)"),
        format!("made token key TokenKeyId({third}…)"),
        "is retired, as an operator asked".to_owned(),
        "is imported, as an operator asked".to_owned(),
    ] {
        assert!(log.contains(&line), "{line}: {log}");
    }

    assert_eq!(list(&config), [pair(&second, "upcoming"), pair(&third, "newest")]);
    said(&config, &["key", "retire", &second, "--yes"]);
    let [(fourth, _)] = phases(&json(&config, &["key", "rotate", "--in", "0s"])).try_into().unwrap();
    said(&config, &import);
    let text = said(&config, &["key", "list"]);
    assert!(text.contains(&format!("{fourth}  type 2  newest    in use from ")), "{text}");
    let running = Daemon::ready("issuer", &config).await;
    let published = published(&running).await;
    assert_eq!(published[0], fourth);
    assert!(published.contains(&first) && published.contains(&third) && published.len() == 3);
}

/// Each finds what the one before has done, so that one key is in use after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_at_the_same_time_take_turns() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    let _running = Daemon::ready("issuer", &config).await;
    let rotate = || {
        let arguments = ["issuer", "key", "rotate", "--in", "0s", "--config", config.to_str().unwrap()];
        Postern::start(command(arguments))
    };
    let commands: Vec<_> = (0..4).map(|_| rotate()).collect();
    for command in commands {
        command.ended().assert_stopped();
    }
    let keys = json(&config, &["key", "list"]);
    let mut begins: Vec<_> = keys.iter().map(|key| key["in_use_from"].as_u64().unwrap()).collect();
    begins.dedup();
    assert_eq!(begins.len(), 5, "each begins in another second: {keys:?}");
    assert_eq!(keys.iter().filter(|key| key["phase"] == "newest").count(), 1, "{keys:?}");
}

/// At another moment of the command each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_during_a_command_leaves_keys_that_the_next_start_reads() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "");
    for kill in 0..10_u64 {
        let running = Daemon::ready("issuer", &config).await;
        let before = published(&running).await;
        let arguments = match kill % 2 {
            0 => vec!["issuer", "key", "rotate", "--in", "0s"],
            _ => vec!["issuer", "key", "retire", &before[0], "--yes"],
        };
        let config = config.to_str().unwrap();
        let command = Postern::start(command(arguments.into_iter().chain(["--config", config])));
        tokio::time::sleep(Duration::from_millis(kill * 40)).await;
        running.kill();
        // It fails, or has been done, by the issuer or on the files that it left.
        let ended = command.ended();
        assert!(matches!(ended.code, Some(0 | 70)), "{ended:?}");
        let running = Daemon::ready("issuer", config.as_ref()).await;
        let after = published(&running).await;
        let lost: Vec<_> = before.iter().filter(|key| !after.contains(key)).collect();
        assert!(lost.is_empty() || (kill % 2 == 1 && lost == [&before[0]]), "{before:?} {after:?}");
        running.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_by_command_refuses_no_user_and_voids_no_token() {
    let store = Memcached::start();
    let site =
        Site::started(Plan { store: vec![store.address()], agents: vec![BUSY], ..Plan::default() }).await;
    let users = Users::of(target::echo().await);
    let program = users.program(site.agent("busy"), Duration::from_millis(50));
    let mut keys = Keys::of(TokenType::BlindRsa2048);
    keys.look(&site.issuer).await;
    let before = listed(&site.issuer, TokenType::BlindRsa2048).await.unwrap();
    let config = &site.issuer.config;
    let made = json(config, &["key", "rotate", "--in", "2s"]);
    let after = listed(&site.issuer, TokenType::BlindRsa2048).await.unwrap();
    assert!(after.contains(&before[0]), "published times do not change: {before:?} {after:?}");
    let begins = UnixSeconds(made[0]["in_use_from"].as_u64().unwrap());
    while UnixSeconds::now() < begins.saturating_add(Duration::from_secs(6)) {
        keys.look(&site.issuer).await;
        assert_eq!(
            keys.too_early_in(&tokens::in_wallet(&site.wallet("busy"))),
            0,
            "minted before the key's time"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A gateway that polled the issuer a moment late is asked again within seconds.
    let of_new = |token: &Token| token.token_key_id().to_hex().starts_with(made[0]["id"].as_str().unwrap());
    let minted = || async { tokens::in_wallet(&site.wallet("busy")).iter().any(of_new).then_some(()) };
    eventually("the agent mints for the new key", minted).await;
    program.stop().await;
    assert_eq!(keys.rotations(), 1);
    users.assert_all_served("over a rotation by command");
    let unknown = site.gateways[0].metrics().await.unwrap();
    assert_eq!(unknown.sum("postern_requests_total", &["outcome=\"unknown_key\""]), 0);
    site.terminate();
}
