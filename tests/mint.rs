//! `postern token mint` and `postern token inspect` against real daemons.

use crate::support::daemon::{Daemon, declared, gateway_config, issuer_config, issuer_config_with};
use crate::support::process::{Ended, Postern, command, run};
use crate::support::relay::Relay;
use crate::support::tls::Authority;
use crate::support::{eventually, proxy, target, tokens};
use postern_testkit::ports;
use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
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
    assert_eq!(printed.stderr, "");
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
    let advice = "name a file that does not exist";
    refused.assert_failed(2, &[&format!("cannot create {path}"), advice]);
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
    let home = TempDir::new().unwrap();
    let account = declared("one", key, "3/365d");
    let issuer = Daemon::ready("issuer", &issuer_config_with(home.path(), &account)).await;
    let url = issuer.http();

    mint(&["--issuer", &url]).assert_failed(70, &["401", "accounts", "--api-key", "POSTERN_ISSUER_API_KEY"]);
    let refused = mint(&["--issuer", &url, "--api-key", "another"]);
    let warning = "give --api-key-file, or set POSTERN_ISSUER_API_KEY";
    refused.assert_failed(70, &["401", "--api-key", warning]);

    let mut by_variable = command(["token", "mint", "--issuer", &url]);
    by_variable.env("POSTERN_ISSUER_API_KEY", key);
    let one = Postern::start(by_variable).ended();
    one.assert_stopped();
    assert_eq!(one.stdout.lines().count(), 1);

    let rest = mint(&["--issuer", &url, "--api-key", key, "--count", "5"]);
    assert_eq!(rest.code, Some(70), "{rest:#?}");
    assert_eq!(rest.stdout.lines().count(), 2, "what the quota allowed is written: {rest:#?}");
    assert!(rest.stderr.contains("429") && rest.stderr.contains("quota"), "{rest:#?}");
    let left =
        "2 of 5 tokens were written to standard output; for the rest run the command again with --count 3";
    assert!(rest.stderr.contains(left), "{rest:#?}");
    assert!(!rest.stderr.contains(key), "{rest:#?}");

    // The count outlives the issuer.
    issuer.process.terminate().assert_stopped();
    let issuer = Daemon::ready("issuer", &home.path().join("issuer.toml")).await;
    let out = home.path().join("tokens");
    let to_file = ["--issuer", &issuer.http(), "--api-key", key, "--out", out.to_str().unwrap()];
    mint(&to_file).assert_failed(70, &["429", "quota", ". No token was written"]);
    assert!(!out.exists(), "an empty file would be in the next run's way");
}

#[test]
fn a_wrong_address_is_reported_in_a_sentence() {
    let unreachable = ports::closed();
    mint(&["--issuer", &format!("http://{unreachable}")])
        .assert_failed(70, &[&unreachable.to_string(), "cannot be reached"]);
    for wrong in ["issuer.example", "ftp://issuer.example", "http://"] {
        mint(&["--issuer", wrong]).assert_failed(2, &[wrong, "http://host:port"]);
    }
    mint(&["--issuer", "http://127.0.0.1:1", "--gateway", "nonsense"]).assert_failed(2, &["nonsense"]);
    // Nothing that was typed here is called gateway.url.
    let away = format!("http://{unreachable}");
    let ended = mint(&["--issuer", &away, "--gateway", &away]);
    ended.assert_failed(70, &[&format!("the gateway {away} cannot be reached"), "is this its address?"]);
    assert!(!ended.stderr.contains("gateway.url"), "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_not_trusted_is_reported_with_the_switch_that_helps() {
    let (home, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (authority, stranger) = (Authority::new(home.path()), Authority::new(other.path()));
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", &authority.section());
    let gateway = Daemon::ready("gateway", &config).await;
    let with = |ca: &Authority| {
        mint(&["--issuer", &issuer.http(), "--gateway", &gateway.https(), "--ca", ca.ca.to_str().unwrap()])
    };
    let refused = with(&stranger);
    let url = gateway.https();
    let what =
        format!("the gateway {url} cannot be reached: the server's certificate was signed by an authority");
    refused.assert_failed(70, &[&what, "set gateway.ca (or --ca) to a PEM file"]);
    assert!(!refused.stderr.contains("is it running"), "{refused:#?}");
    with(&authority).assert_stopped();
}

/// An issuer whose answers are held back, so that there is time to interrupt.
struct Slow {
    _home: TempDir,
    _issuer: Daemon,
    relay: Relay,
    out: PathBuf,
}

impl Slow {
    async fn start() -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let relay = Relay::to(&[issuer.address.port()]);
        relay.hold_replies(Duration::from_millis(100));
        let out = home.path().join("tokens");
        Self { _home: home, _issuer: issuer, relay, out }
    }

    fn mint(&self, more: &[&str]) -> Postern {
        let url = format!("http://{}", self.relay.address());
        let out = self.out.to_str().unwrap();
        Postern::start(command([&["token", "mint", "--issuer", &url, "--out", out], more].concat()))
    }

    /// The whole lines that are written, each another token.
    fn written(&self) -> usize {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let nonces: Vec<_> = whole.map(|value| tokens::token_of(value).nonce()).collect();
        assert_eq!(nonces.iter().collect::<HashSet<_>>().len(), nonces.len(), "a token stands there twice");
        nonces.len()
    }

    async fn some_written(&self, least: usize) {
        eventually("some tokens are written", || async { (self.written() >= least).then_some(()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_mint_reports_how_many_tokens_there_are_and_how_to_continue() {
    for (signal, name) in [("INT", "Ctrl-C"), ("TERM", "SIGTERM")] {
        let slow = Slow::start().await;
        let minting = slow.mint(&["--count", "1000"]);
        slow.some_written(3).await;
        minting.signal(signal);
        let ended = minting.ended();
        let written = slow.written();
        let path = slow.out.display();
        let output = format!(
            "postern: stopped by {name}: {written} of 1000 tokens were written to {path}; for the rest run the command \
             again with --count {}, to another file\n",
            1000 - written
        );
        assert_eq!(ended.code, Some(70), "{ended:#?}");
        assert!((3..1000).contains(&written) && ended.stderr.ends_with(&output), "{output}{ended:#?}");
        assert!(
            ended.stderr.starts_with(&format!("{name}: writing the tokens that are under way")),
            "{ended:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_does_not_wait_for_an_issuer_that_is_silent() {
    let slow = Slow::start().await;
    let minting = slow.mint(&["--count", "1000"]);
    slow.some_written(1).await;
    slow.relay.hold_replies(Duration::from_secs(3600));
    minting.signal("INT");
    minting.wait_for("that it waits", |_, stderr| stderr.contains("Ctrl-C: writing").then_some(()));
    minting.signal("INT");
    let ended = minting.ended();
    assert_eq!(ended.code, Some(70), "{ended:#?}");
    let output = format!("under way are lost: {} of 1000 tokens", slow.written());
    assert!(
        ended.stderr.contains("stopped at once by a second signal") && ended.stderr.contains(&output),
        "{ended:#?}"
    );
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
    let [value] = &tokens::mint(&issuer.http(), &gateway.http(), 1)[..] else { panic!("not one token") };

    let token = inspect(value);
    token.assert_stopped();
    let key = tokens::token_of(value).token_key_id().to_hex();
    for part in ["blind RSA 2048", "nonce", &key, "authenticator"] {
        assert!(token.stdout.contains(part), "{part:?} is not in {token:#?}");
    }
    assert_eq!(by_stdin(&format!("{value}\n")).stdout, token.stdout);

    // A file of one or several, by its name, and several by standard input.
    let file = home.path().join("tokens");
    let path = file.to_str().unwrap();
    std::fs::write(&file, format!("{value}\n")).unwrap();
    assert_eq!(inspect(path).stdout, token.stdout);
    let several = tokens::mint(&issuer.http(), &gateway.http(), 3).join("\n");
    std::fs::write(&file, &several).unwrap();
    let numbered = inspect(path);
    numbered.assert_stopped();
    for number in 1..=3 {
        assert!(
            numbered.stdout.contains(&format!("Line {number}: PrivateToken credentials")),
            "{numbered:#?}"
        );
    }
    assert_eq!(numbered.stdout.matches("nonce").count(), 3);
    assert_eq!(by_stdin(&several).stdout, numbered.stdout);
    std::fs::write(&file, format!("{value}\n\nBasic dXNlcjpwYXNz\n{value}\n")).unwrap();
    let mixed = inspect(path);
    assert_eq!(mixed.code, Some(1), "{mixed:#?}");
    assert!(mixed.stdout.contains("Line 1: ") && mixed.stdout.contains("Line 4: "), "{mixed:#?}");
    let wrong = ["postern: line 3: ", "1 of 3 lines"];
    assert!(wrong.iter().all(|part| mixed.stderr.contains(part)), "{mixed:#?}");
    let missing = home.path().join("missing.txt");
    inspect(missing.to_str().unwrap()).assert_failed(1, &["if it names a file, there is none of this name"]);

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
