//! Tiers: terms of the configuration file that accounts of the database share.

use super::{add_with, issuer, json, mint, said};
use crate::support::daemon::{Daemon, issuer_config};
use crate::support::{admin, eventually};
use std::path::Path;
use tempfile::TempDir;

fn tier(name: &str, quota: &str) -> String {
    format!("[[tiers]]\nname = \"{name}\"\nquota = \"{quota}\"\n")
}

/// Writes another file and sends SIGHUP; returns when the log reports that the file is in force.
fn reload(running: &Daemon, home: &Path, tiers: &str) {
    issuer_config(home, tiers);
    running.reread("is in force from now on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tier_counts_from_the_reload_on_and_one_that_goes_refuses_its_accounts() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), &tier("gold", "1/36500d"));
    let key = add_with(&config, "alice", &["--tier", "gold"]);
    issuer(&config, &["account", "add", "bob", "--tier", "glod"])
        .assert_failed(2, &["choose one of \"gold\""]);
    assert_eq!(said(&config, &["account", "list"]), "alice  1/36500d (of its tier)  tier gold\n");
    let running = Daemon::ready("issuer", &config).await;
    mint(&running, &key).assert_stopped();
    mint(&running, &key).assert_failed(70, &["429", "quota is spent"]);

    let faster = tier("gold", "3/36500d") + "rate = 1000\nburst = 1000\n";
    reload(&running, home.path(), &faster);
    mint(&running, &key).assert_stopped();
    let shown = &json(&config, &["account", "show", "alice"])[0];
    assert_eq!(shown["of_tier"], serde_json::json!(["quota", "burst"]), "{shown}");
    assert_eq!((&shown["quota"], &shown["usage"][0]["tokens"]), (&"3/36500d".into(), &2.into()));

    reload(&running, home.path(), &tier("silver", "4/36500d"));
    mint(&running, &key).assert_failed(70, &["403", "its tier is not in the issuer's configuration"]);
    eventually("readiness tells of the tier", async || {
        let (status, body) = admin::get(running.admin, "/readyz").await?;
        (status == 200 && body.contains("\"gold\" (1 accounts)")).then_some(())
    })
    .await;
    let listed = said(&config, &["account", "list"]);
    assert_eq!(listed, "alice  no quota, for the configuration does not have its tier  tier gold\n");
    said(&config, &["account", "quota", "alice", "--tier", "silver"]);
    mint(&running, &key).assert_stopped();
    eventually("readiness is well again", async || {
        let (_, body) = admin::get(running.admin, "/readyz").await?;
        (!body.contains("gold")).then_some(())
    })
    .await;
    let log = running.process.terminate().stderr;
    assert!(!log.contains("alice"), "{log}");
}
