//! Accounts that are known by their clients' certificates (mutual TLS).

use super::{add, issuer, json, said};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::doctor::doctor;
use crate::support::process::{Ended, run};
use crate::support::proxy;
use crate::support::target;
use crate::support::tls::Authority;
use std::path::PathBuf;
use tempfile::TempDir;

/// An issuer whose listener asks for certificates, and does not need them.
fn config(home: &TempDir, authority: &Authority) -> PathBuf {
    let tls = format!("{}client_ca = {:?}\n", authority.section(), authority.ca);
    let config = issuer_config(home.path(), &tls);
    let text = std::fs::read_to_string(&config).unwrap();
    let listen = "[listen]\nclient_certificates = \"optional\"\n";
    std::fs::write(&config, text.replacen("[listen]\n", listen, 1)).unwrap();
    config
}

fn mint(running: &Daemon, authority: &Authority, client: Option<&[PathBuf; 2]>, key: Option<&str>) -> Ended {
    let (url, ca) = (running.https(), authority.ca.to_str().unwrap());
    let mut arguments = vec!["token", "mint", "--issuer", &url, "--ca", ca];
    if let Some([certificate, key]) = client {
        let [certificate, key] = [certificate, key].map(|path| path.to_str().unwrap());
        arguments.extend(["--certificate", certificate, "--certificate-key", key]);
    }
    arguments.extend(key.iter().flat_map(|key| ["--api-key", *key]));
    run(arguments)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_an_account_until_it_is_removed_and_through_its_renewals() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let config = config(&home, &authority);
    let [phone, laptop, stranger] = ["phone", "laptop", "stranger"].map(|name| authority.client_named(name));
    let file = |client: &[PathBuf; 2]| client[0].to_str().unwrap().to_owned();
    let lines =
        json(&config, &["account", "add", "alice", "--quota", "6/36500d", "--certificate", &file(&phone)]);
    assert!(lines.iter().all(|line| line.get("api_key").is_none()), "it needs none: {lines:?}");
    let bob = add(&config, "bob", "5/36500d");
    let running = Daemon::ready("issuer", &config).await;
    let mint = |client: Option<&[PathBuf; 2]>, key: Option<&str>| mint(&running, &authority, client, key);

    mint(Some(&phone), None).assert_stopped();
    authority.client_named("phone"); // renewed for its key
    mint(Some(&phone), None).assert_stopped();
    mint(Some(&laptop), None)
        .assert_failed(70, &["401", "belongs to no account", "Ask the issuer's operator"]);
    said(&config, &["account", "add-certificate", "alice", &file(&laptop)]);
    mint(Some(&laptop), None).assert_stopped();
    issuer(&config, &["account", "add-certificate", "bob", &file(&laptop)])
        .assert_failed(2, &["\"alice\" is known by this certificate"]);

    // Both have to agree if both are present.
    mint(None, Some(&bob)).assert_stopped();
    mint(Some(&stranger), Some(&bob)).assert_stopped();
    mint(Some(&phone), Some(&bob)).assert_failed(70, &["401", "belong to different accounts"]);
    let line = &json(&config, &["account", "rotate-key", "alice"])[0];
    let alice = line["api_key"].as_str().unwrap();
    mint(Some(&phone), Some(alice)).assert_stopped();
    mint(None, None).assert_failed(70, &["401", "Tokens are for accounts"]);

    let shown = &json(&config, &["account", "show", "alice"])[0];
    assert_eq!(shown["usage"][0]["tokens"], 4);
    let number = shown["certificates"][0]["id"].to_string();
    said(&config, &["account", "remove-certificate", "alice", &number]);
    mint(Some(&phone), None).assert_failed(70, &["401", "belongs to no account"]);
    mint(Some(&laptop), None).assert_stopped();
    issuer(&config, &["account", "remove-certificate", "alice", &number])
        .assert_failed(2, &["no certificate"]);
    said(&config, &["account", "disable", "alice"]);
    mint(Some(&laptop), None).assert_failed(70, &["403", "disabled"]);
    let log = running.process.terminate().stderr;
    let key = shown["certificates"][1]["public_key_sha256"].as_str().unwrap();
    assert!(!["alice", "bob", key].iter().any(|secret| log.contains(secret)), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_gets_its_tokens_by_its_certificate_where_one_is_required() {
    let home = TempDir::new().unwrap();
    let authority = Authority::new(home.path());
    let config = config(&home, &authority);
    let [certificate, key] = authority.client_named("agent");
    let file = certificate.to_str().unwrap();
    said(&config, &["account", "add", "alice", "--quota", "1000/36500d", "--certificate", file]);
    let running = Daemon::ready("issuer", &config).await;
    let ca = format!("ca = {:?}", authority.ca);
    let gateway = gateway_config(home.path(), &running.https(), &ca, "1s", &authority.section());
    let gateway = Daemon::ready("gateway", &gateway).await; // it has fetched the keys without a certificate
    // From now on the listener requires a certificate.
    let text = std::fs::read_to_string(&config).unwrap().replace("\"optional\"", "\"required\"");
    std::fs::write(&config, text).unwrap();
    running.process.signal("HUP");
    running.process.wait_for("a reload", |_, log| log.contains("in force from now on").then_some(()));
    mint(&running, &authority, None, Some("any")).assert_failed(70, &["certificate"]);

    let agent = client_config(home.path(), &gateway.https(), &running.https(), Some(&authority.ca));
    let text = std::fs::read_to_string(&agent).unwrap();
    let shown = format!("[issuer]\ncertificate = {certificate:?}\nkey = {key:?}\n");
    std::fs::write(&agent, text.replacen("[issuer]\n", &shown, 1)).unwrap();
    let agent = Daemon::ready("client", &agent).await;
    let mut stream = proxy::dial(agent.address).await.unwrap();
    let echo = target::echo().await;
    let head = proxy::connect(&mut stream, &echo.to_string(), None).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
}

#[test]
fn certificates_that_cannot_be_asked_for_or_read_are_refused_with_the_way_out() {
    let home = TempDir::new().unwrap();
    let plain = issuer_config(home.path(), "");
    let text = std::fs::read_to_string(&plain).unwrap();
    let listen = "[listen]\nclient_certificates = \"optional\"\n";
    std::fs::write(&plain, text.replacen("[listen]\n", listen, 1)).unwrap();
    doctor(&plain).assert_would_not_start(64, &["needs [tls] client_ca"]);
    let file = home.path().join("none.pem");
    issuer(&plain, &["account", "add", "alice", "--quota", "1/1d", "--certificate", file.to_str().unwrap()])
        .assert_failed(2, &["none.pem", "check the path"]);
    let agent = client_config(home.path(), "https://gateway.example", "https://issuer.example", None);
    let text = std::fs::read_to_string(&agent).unwrap();
    std::fs::write(&agent, text.replacen("[issuer]\n", "[issuer]\ncertificate = \"a.pem\"\n", 1)).unwrap();
    doctor(&agent).assert_would_not_start(64, &["issuer.key belong together"]);
}
