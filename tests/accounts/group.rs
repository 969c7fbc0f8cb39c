//! Two issuers with one key set and shared accounts, each giving its share of every quota: the first one, and one that follows it.

use super::kills::ask_all;
use super::{add, issuer, json, mint, said};
use crate::support::admin::{self, Metrics};
use crate::support::daemon::{Daemon, client_config, gateway_config};
use crate::support::group::Group;
use crate::support::proxy::{connect, dial};
use crate::support::tokens;
use crate::support::{eventually, target};
use postern_token::DIRECTORY_PATH;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;
use tempfile::TempDir;

/// A period that is under way for years yet.
const PERIOD: &str = "10000d";

async fn directory(issuer: &Daemon) -> Vec<u8> {
    let url = format!("{}{DIRECTORY_PATH}", issuer.http());
    reqwest::get(url).await.unwrap().bytes().await.unwrap().to_vec()
}

async fn same_directory(first: &Daemon, follower: &Daemon) {
    eventually("the follower publishes what the first does", || async {
        (directory(first).await == directory(follower).await).then_some(())
    })
    .await;
}

async fn readiness(issuer: &Daemon, contains: &str) {
    eventually(&format!("/readyz says {contains}"), || async {
        admin::get(issuer.admin, "/readyz").await.filter(|(_, body)| body.contains(contains))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_of_both_under_64_clients_give_no_token_beyond_the_quota() {
    const QUOTA: i64 = 6_000;
    const ROUNDS: i64 = 4;
    let group = Group::new("1/2", "1/2", "");
    let key = add(&group.first, "alice", &format!("{QUOTA}/{PERIOD}"));
    let signed = Arc::new(AtomicI64::new(0));
    let mut both = Some(group.started().await);
    for round in 0..ROUNDS {
        let [first, follower] = match both.take() {
            Some(both) => both,
            None => {
                [Daemon::ready("issuer", &group.first).await, Daemon::ready("issuer", &group.follower).await]
            }
        };
        let mut clients = ask_all(&first, &key, 32, &signed).await;
        clients.extend(ask_all(&follower, &key, 32, &signed).await);
        let wanted = signed.load(SeqCst) + 60 + 17 * round;
        let until = async |wanted| {
            while signed.load(SeqCst) < wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        until(wanted).await;
        let [one, other] = if round % 2 == 0 { [first, follower] } else { [follower, first] };
        one.kill();
        group.copy(); // while neither is at rest
        until(wanted + 40).await;
        other.kill();
        for client in clients {
            client.await.unwrap();
        }
        let counted = group.used();
        assert!(counted.iter().all(|counted| *counted <= QUOTA / 2), "{counted:?}");
        assert!(
            signed.load(SeqCst) <= counted.iter().sum(),
            "{signed:?} tokens came, {counted:?} are counted"
        );
    }
    let [first, follower] =
        [Daemon::ready("issuer", &group.first).await, Daemon::ready("issuer", &group.follower).await];
    let mut clients = ask_all(&first, &key, 32, &signed).await;
    clients.extend(ask_all(&follower, &key, 32, &signed).await);
    for client in clients {
        client.await.unwrap();
    }
    let all = signed.load(SeqCst);
    // Each kill costs a fiftieth of the share, and those being requested.
    let lost = 2 * ROUNDS * (QUOTA / 2 / 50 + 64);
    assert!((QUOTA - lost..=QUOTA).contains(&all), "{all} tokens of {QUOTA}");
    println!("{all} of {QUOTA} tokens came after {} kills", 2 * ROUNDS);
    // The figures of both can be added up.
    let total: u64 = [&group.first, &group.follower]
        .into_iter()
        .flat_map(|config| {
            said(config, &["usage", "--format", "json"])
                .lines()
                .map(|line| {
                    serde_json::from_str::<serde_json::Value>(line).unwrap()["tokens"].as_u64().unwrap()
                })
                .collect::<Vec<_>>()
        })
        .sum();
    assert_eq!(total, u64::try_from(QUOTA).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_has_the_keys_and_accounts_of_each_copy_and_loses_none_by_a_torn_one() {
    let group = Group::new("2/3", "1/3", "types = [5, 2]");
    // More than all the looks below can ask for, however long they take.
    let key = add(&group.first, "alice", &format!("300000/{PERIOD}"));
    let [first, follower] = group.started().await;
    same_directory(&first, &follower).await;
    let secrets = group.home.path().join("first");
    let config = gateway_config(
        group.home.path(),
        &first.http(),
        &format!("types = [5, 2]\npoll = \"1s\"\nsecrets = {secrets:?}\n"),
        "1s",
        "",
    );
    let gateway = Daemon::ready("gateway", &config).await;
    let echo = target::echo().await.to_string();
    let minted = |issuer: &Daemon| {
        let (issuer, gateway) = (issuer.http(), gateway.http());
        let source = ["token", "mint", "--issuer", &issuer, "--gateway", &gateway, "--api-key", &key];
        let ended = crate::support::process::run(source.iter().chain(&["--count", "4"]));
        ended.assert_stopped();
        ended.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let admits = async |authorization: &str| {
        let mut stream = dial(gateway.address).await.unwrap();
        assert_eq!(connect(&mut stream, &echo, Some(authorization)).await.unwrap().status, 200);
    };
    let mut older: Vec<_> = [&first, &follower].into_iter().flat_map(&minted).collect();
    for authorization in older.split_off(4) {
        admits(&authorization).await;
    }

    // A rotation that is not by the schedule.
    let before = directory(&first).await;
    let newest = |list: Vec<serde_json::Value>| {
        list.into_iter()
            .filter(|key| key["phase"] == "newest")
            .map(|key| key["id"].clone())
            .collect::<Vec<_>>()
    };
    let old = newest(json(&group.first, &["key", "list"]));
    issuer(&group.follower, &["key", "rotate"]).assert_failed(70, &["run this command at the first issuer"]);
    said(&group.first, &["key", "rotate", "--in", "4s"]);
    group.copy();
    same_directory(&first, &follower).await;
    assert_ne!(directory(&first).await, before);
    eventually("the new keys are in use", || async {
        (newest(json(&group.first, &["key", "list"])) != old).then_some(())
    })
    .await;
    same_directory(&first, &follower).await;
    let used_key = |authorization: &String| tokens::token_of(authorization).token_key_id();
    let newer = eventually("the gateway asks for tokens of the new key", || async {
        let newer = minted(&follower);
        (used_key(&newer[0]) != used_key(&older[0])).then_some(newer)
    })
    .await;
    for authorization in older.iter().chain(&newer) {
        admits(authorization).await;
    }

    // Accounts, by the copy and not before.
    said(&group.first, &["account", "disable", "alice"]);
    mint(&follower, &key).assert_stopped();
    group.copy();
    eventually("the account is disabled", || async { (mint(&follower, &key).code != Some(0)).then_some(()) })
        .await;
    mint(&follower, &key).assert_failed(70, &["403", "disabled"]);
    issuer(&group.follower, &["account", "enable", "alice"])
        .assert_failed(70, &["run this command at the first issuer"]);
    let copies = group.copies();
    let database = copies.join("accounts.sqlite");
    let old = std::fs::read(&database).unwrap();
    said(&group.first, &["account", "enable", "alice"]);
    let carol = add(&group.first, "carol", &format!("2/{PERIOD}"));
    group.copy();
    eventually("the account is enabled", || async { (mint(&follower, &key).code == Some(0)).then_some(()) })
        .await;
    readiness(&follower, "less than one token").await;
    mint(&follower, &carol).assert_failed(70, &["429"]);
    let shown = said(&group.follower, &["account", "show", "carol"]);
    assert!(shown.contains("of which this issuer gives nothing (share 1/3)"), "{shown}");
    let page = admin::page(follower.admin, "/metrics").await;
    let metrics = Metrics::of(follower.admin).await;
    assert!(page.contains("postern_issuer_share_ratio{group=\"issuers\"} 0.333"), "{page}");
    assert!(metrics.value("postern_issuer_accounts_copied_timestamp_seconds") > 1_700_000_000);
    assert!(metrics.value("postern_issuer_signs_until_timestamp_seconds") > 1_700_000_000);

    // A torn or older file changes nothing.
    let whole = std::fs::read(&database).unwrap();
    std::fs::write(&database, &whole[..whole.len() / 2]).unwrap();
    readiness(&follower, "not whole").await;
    std::fs::write(&database, &old).unwrap();
    readiness(&follower, "older").await;
    let torn = copies.join("1800000000-1900000000-2000000000-0011aabb.p8");
    std::fs::write(&torn, "half of a key").unwrap();
    std::fs::set_permissions(&torn, PermissionsExt::from_mode(0o600)).unwrap();
    readiness(&follower, "key file among the first issuer's copies").await;
    mint(&follower, &key).assert_stopped();
    same_directory(&first, &follower).await;
    std::fs::remove_file(torn).unwrap();
    group.copy();
    eventually("all is well", || async {
        admin::get(follower.admin, "/readyz")
            .await
            .filter(|(_, body)| !body.contains("copies") && !body.contains("copy"))
    })
    .await;
    // The first one's death changes nothing at the follower, with a restart as without.
    first.kill();
    std::fs::remove_dir_all(&copies).unwrap();
    follower.kill();
    let follower = Daemon::ready("issuer", &group.follower).await;
    mint(&follower, &key).assert_stopped();
    let (keys, served) = (json(&group.follower, &["key", "list"]), directory(&follower).await);
    // Nor does it matter to becoming the first: its own directory has all that it takes.
    follower.process.terminate().assert_stopped();
    let text = std::fs::read_to_string(&group.follower).unwrap();
    std::fs::write(&group.follower, text.replace(&format!("follow = {copies:?}"), "")).unwrap();
    let first = Daemon::ready("issuer", &group.follower).await;
    assert_eq!((json(&group.follower, &["key", "list"]), directory(&first).await), (keys, served));
    let usage = |config: &Path| json(config, &["account", "show", "alice"])[0]["usage"][0]["tokens"].clone();
    let before = usage(&group.follower).as_i64().unwrap();
    mint(&first, &key).assert_stopped();
    assert_eq!(usage(&group.follower), before + 1);
    let dave = add(&group.follower, "dave", &format!("9/{PERIOD}"));
    mint(&first, &dave).assert_stopped();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_keys_are_followed_under_the_same_passphrase() {
    let home = TempDir::new().unwrap();
    let passphrase = home.path().join("passphrase");
    std::fs::write(&passphrase, "kZp7-passphrase-of-the-group\n").unwrap();
    std::fs::set_permissions(&passphrase, PermissionsExt::from_mode(0o600)).unwrap();
    let group = Group::new("1/2", "1/2", &format!("passphrase_file = {passphrase:?}"));
    add(&group.first, "alice", &format!("8/{PERIOD}"));
    let [first, follower] = group.joined().await;
    same_directory(&first, &follower).await;
    let files =
        std::fs::read_dir(group.home.path().join("follower")).unwrap().map(|entry| entry.unwrap().path());
    let keys: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "p8")).collect();
    assert_eq!(keys.len(), 1);
    let text = std::process::Command::new("openssl")
        .args(["asn1parse", "-inform", "DER", "-in"])
        .arg(&keys[0])
        .output();
    assert!(String::from_utf8_lossy(&text.unwrap().stdout).contains("PBES2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_that_change_within_a_period_give_no_token_more() {
    let group = Group::new("1/1", "1/2", "");
    let key = add(&group.first, "alice", &format!("10/{PERIOD}"));
    let first = Daemon::ready("issuer", &group.first).await;
    (0..8).for_each(|_| mint(&first, &key).assert_stopped());
    let text = std::fs::read_to_string(&group.first).unwrap();
    std::fs::write(&group.first, text.replace("share = \"1/1\"", "share = \"1/2\"")).unwrap();
    first.process.signal("HUP");
    first.process.wait_for("the reload", |_, log| log.contains("group.share").then_some(()));
    mint(&first, &key).assert_failed(70, &["429", "spent at this issuer"]);
    group.copy();
    let follower = Daemon::ready("issuer", &group.follower).await;
    mint(&follower, &key).assert_failed(70, &["429", "its share of the quota is 0"]);
    let shown = said(&group.follower, &["account", "show", "alice"]);
    let expected = "gives nothing (share 0/1), from the next period on 5/10000d";
    assert!(shown.contains(expected), "{shown}");
    // In a period that begins after both changes each gives its half; one of a few seconds does.
    said(&group.first, &["account", "quota", "alice", "10/8s"]);
    group.copy();
    let signed = Arc::new(AtomicI64::new(0));
    let by_period = |config: &Path| {
        let rows =
            json(config, &["account", "show", "alice"])[0]["usage"].as_array().cloned().unwrap_or_default();
        let number = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
        let short = rows.into_iter().filter(|row| number(row, "period_seconds") == 8);
        short.map(|row| (number(&row, "period_start"), number(&row, "tokens"))).collect::<BTreeMap<_, _>>()
    };
    eventually("a period of both", || async {
        for issuer in [&first, &follower] {
            for client in ask_all(issuer, &key, 1, &signed).await {
                client.await.unwrap();
            }
        }
        let [one, other] = [&group.first, &group.follower].map(|config| by_period(config));
        assert!(one.values().chain(other.values()).all(|tokens| *tokens <= 5), "{one:?} {other:?}");
        one.iter().any(|(start, tokens)| *tokens == 5 && other.get(start) == Some(&5)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_both_issuers_gets_all_of_the_quota() {
    let group = Group::new("1/2", "1/2", "");
    let key = add(&group.first, "alice", &format!("60/{PERIOD}"));
    let [first, follower] = group.started().await;
    let config = gateway_config(group.home.path(), &first.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    let config = client_config(group.home.path(), &gateway.http(), &first.http(), None);
    let text = std::fs::read_to_string(&config).unwrap();
    let urls = format!("url = [\"{}\", \"{}\"]\napi_key = \"{key}\"", first.http(), follower.http());
    std::fs::write(&config, text.replace(&format!("url = \"{}\"", first.http()), &urls)).unwrap();
    let agent = Daemon::start("client", &config); // its wallet holds more than the quota, so it asks both for all that they have
    let wallet = group.home.path().join("wallet");
    eventually("the agent has the whole quota", || async {
        (wallet.exists() && tokens::in_wallet(&wallet).len() == 60).then_some(())
    })
    .await;
    for config in [&group.first, &group.follower] {
        assert_eq!(json(config, &["account", "show", "alice"])[0]["usage"][0]["tokens"], 30);
    }
    let echo = target::echo().await.to_string();
    let mut stream = dial(agent.address).await.unwrap();
    assert_eq!(connect(&mut stream, &echo, None).await.unwrap().status, 200);
}
