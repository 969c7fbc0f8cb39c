//! `postern token mint` and `postern token inspect` against real daemons.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use postern_token::ChallengeDigest;
use std::collections::HashSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use support::daemon::{Daemon, gateway_config, issuer_config};
use support::process::{Ended, Postern, command, run};
use support::{proxy, target, tokens};
use tempfile::TempDir;

fn mint(args: &[&str]) -> Ended {
    run(["token", "mint"].iter().chain(args))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_minted_opens_tunnels_and_is_kept_private() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    let source = ["--issuer", &issuer.http(), "--gateway", &gateway.http()];

    let printed = mint(&source);
    printed.assert_stopped();
    assert_eq!(printed.stderr, "", "no progress bar where there is no terminal");
    assert_eq!(printed.stdout.lines().count(), 1);

    let out = home.path().join("tokens");
    let path = out.to_str().unwrap();
    let to_file = [&source[..], &["--count", "20", "--out", path]].concat();
    let written = mint(&to_file);
    written.assert_stopped();
    assert_eq!((written.stdout.as_str(), written.stderr.as_str()), ("", ""));
    assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&out).unwrap();
    let refused = mint(&to_file);
    refused.assert_failed(70, &[&format!("cannot create {path}"), "name a file that does not exist"]);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text, "nothing is written over");

    let values: Vec<&str> = text.lines().chain(printed.stdout.lines()).collect();
    let nonces: HashSet<_> = values.iter().map(|value| tokens::token_of(value).nonce()).collect();
    assert_eq!(nonces.len(), 21);
    let echo = target::echo().await.to_string();
    for value in values {
        let mut stream = proxy::dial(gateway.address).await.unwrap();
        assert_eq!(proxy::connect(&mut stream, &echo, Some(value)).await.unwrap().status, 200);
        proxy::echoes(&mut stream, b"paid").await.unwrap();
    }

    // Without a gateway the challenge names the issuer and no origin.
    let originless = mint(&["--issuer", &issuer.http()]);
    originless.assert_stopped();
    let token = tokens::token_of(originless.stdout.trim_end());
    assert_ne!(token.challenge_digest(), tokens::token_of(printed.stdout.trim_end()).challenge_digest());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_gets_its_quota_and_then_a_sentence() {
    let key = "0d6c58a1f2e97b4335d10a6e8c7f9b2204e1d3a5968b7c0f";
    let hash = hex::encode(ChallengeDigest::of(key.as_bytes()).0); // SHA-256, by the name at hand
    let accounts = format!("[[accounts]]\nname = \"one\"\nkey_sha256 = \"{hash}\"\nquota = \"3/365d\"\n");
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), &accounts)).await;
    let url = issuer.http();

    mint(&["--issuer", &url]).assert_failed(70, &["401", "accounts", "--api-key"]);
    mint(&["--issuer", &url, "--api-key", "another"]).assert_failed(70, &["401", "--api-key"]);

    let mut by_variable = command(["token", "mint", "--issuer", &url]);
    by_variable.env("POSTERN_API_KEY", key);
    let one = Postern::start(by_variable).ended();
    one.assert_stopped();
    assert_eq!(one.stdout.lines().count(), 1);

    let rest = mint(&["--issuer", &url, "--api-key", key, "--count", "5"]);
    assert_eq!(rest.code, Some(70), "{rest:#?}");
    assert_eq!(rest.stdout.lines().count(), 2, "what the quota allowed is written: {rest:#?}");
    assert!(rest.stderr.contains("429") && rest.stderr.contains("quota"), "{rest:#?}");
    assert!(rest.stderr.contains("(2 minted)"), "{rest:#?}");
    assert!(!rest.stderr.contains(key), "{rest:#?}");

    // The count outlives the issuer.
    issuer.process.terminate().assert_stopped();
    let issuer = Daemon::ready("issuer", &home.path().join("issuer.toml")).await;
    mint(&["--issuer", &issuer.http(), "--api-key", key]).assert_failed(70, &["429", "quota"]);
}

#[test]
fn a_wrong_address_is_said_in_a_sentence() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    mint(&["--issuer", &format!("http://{nobody}")])
        .assert_failed(70, &[&nobody.to_string(), "cannot be reached"]);
    for wrong in ["issuer.example", "ftp://issuer.example", "http://"] {
        mint(&["--issuer", wrong]).assert_failed(2, &[wrong, "http://host:port"]);
    }
    mint(&["--issuer", "http://127.0.0.1:1", "--gateway", "nonsense"]).assert_failed(70, &["nonsense"]);
}

fn inspect(value: &str) -> Ended {
    run(["token", "inspect", value])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_challenges_are_explained_and_broken_ones_pointed_at() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    let [value] = &tokens::mint(&issuer.http(), &gateway.http(), 1)[..] else { panic!("one was asked for") };

    let token = inspect(value);
    token.assert_stopped();
    let key = tokens::token_of(value).token_key_id().to_hex();
    for part in ["blind RSA 2048", "nonce", &key, "authenticator"] {
        assert!(token.stdout.contains(part), "{part:?} is not in {token:#?}");
    }
    assert_eq!(by_stdin(&format!("{value}\n")).stdout, token.stdout);

    let mut stream = proxy::dial(gateway.address).await.unwrap();
    let head = proxy::connect(&mut stream, "example.com:443", None).await.unwrap();
    let challenge = inspect(head.value("proxy-authenticate").unwrap());
    challenge.assert_stopped();
    for part in ["issuer.example", "proxy.example", "blind RSA 2048", &key] {
        assert!(challenge.stdout.contains(part), "{part:?} is not in {challenge:#?}");
    }

    let cut = format!("{}\"", &value[..value.len() - 9]);
    let unclosed = &value[..value.len() - 1];
    let spoilt = value.replacen("token=\"", "token=\"!", 1);
    for (broken, sentence) in [
        (cut.as_str(), "authenticator"),
        (unclosed, "quot"),
        (spoilt.as_str(), "base64url"),
        ("Basic dXNlcjpwYXNz", "PrivateToken"),
        ("PrivateToken", "token"),
        ("", ""),
    ] {
        let ended = inspect(broken);
        ended.assert_failed(1, &["postern: ", sentence]);
        assert!(ended.stderr.len() > "postern: \n".len(), "{ended:#?}");
    }
    let pointed = inspect(&spoilt);
    assert!(pointed.stderr.contains("byte 20"), "the place is named: {pointed:#?}");
}

fn by_stdin(input: &str) -> Ended {
    let mut command = command(["token", "inspect"]);
    command.stdin(Stdio::piped());
    let mut process = Postern::start(command);
    process.stdin().write_all(input.as_bytes()).unwrap();
    let ended = process.ended();
    ended.assert_stopped();
    ended
}
