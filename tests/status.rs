//! `postern status URL`, and `postern client status`: an agent that serves, one that cannot mint, and one that does not run. And
//! whether addresses agree.

use crate::support::admin;
use crate::support::association::{datagram, echo, v4};
use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::process::{Ended, Postern, command, run};
use crate::support::udp::{Stage, Way};
use crate::support::{eventually, tokens};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Runs the command for an agent whose admin listener is at `admin`: the configuration of a test has port 0.
fn status(config: &Path, admin: SocketAddr, more: &[&str]) -> Ended {
    let mut status = command(["client", "status", "--config", config.to_str().unwrap()]);
    status.args(more).env("POSTERN_LISTEN_ADMIN", admin.to_string());
    Postern::start(status).ended()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_says_what_it_has_and_what_it_does_next() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let config = client_config(home.path(), &gateway.http(), &issuer.http(), None);
    let agent = Daemon::ready("client", &config).await;
    let full = "nothing to do: 128 of 128 kept, mints again below 32";
    let said = eventually("the wallet is full", || async {
        let said = status(&config, agent.admin, &[]);
        said.stdout.contains(full).then_some(said)
    })
    .await;
    said.assert_stopped();
    let gateway_line = format!("gateway     {}: serves\n", gateway.http());
    let parts = [
        "ready\n",
        &gateway_line,
        "known, bound to the gateway's records by a mark",
        "128 of key ",
        "type 2 (blind RSA 2048), good until",
    ];
    for part in parts.iter().chain(&["last error  none since the start"]) {
        assert!(said.stdout.contains(part), "{part:?} is not in {}", said.stdout);
    }
    let json = status(&config, agent.admin, &["--json"]);
    json.assert_stopped();
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&value["agent"]["wallet"][0]["tokens"], &value["not_ready"]),
        (&128.into(), &Value::Array(Vec::new()))
    );

    // The wallet is the agent's while it runs, wherever its admin listener is.
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let elsewhere = status(&config, nowhere, &[]);
    assert_eq!(elsewhere.code, Some(3), "{elsewhere:?}");
    assert!(elsewhere.stdout.contains("another postern has the wallet"), "{elsewhere:?}");

    // Another daemon answers at the address.
    let foreign = status(&config, gateway.admin, &[]);
    foreign.assert_failed(1, &["this is no agent's status"]);

    gateway.process.terminate().assert_stopped();
    eventually("the agent knows that its gateway is away", || async {
        admin::get(agent.admin, "/readyz").await.filter(|(status, _)| *status == 503)
    })
    .await;
    let away = status(&config, agent.admin, &[]);
    assert_eq!(away.code, Some(1), "{away:?}");
    assert!(away.stdout.starts_with("not ready\n") && away.stdout.contains(": away: "), "{away:?}");
    assert!(away.stderr.contains("the agent is not ready: gateway: "), "{away:?}");
    agent.process.terminate().assert_stopped();

    let stopped = status(&config, nowhere, &[]);
    assert_eq!(stopped.code, Some(3), "{stopped:?}");
    assert!(stopped.stdout.contains("  wallet      128 of key "), "{stopped:?}");
    assert!(stopped.stderr.contains("no agent runs at 127.0.0.1:9"), "{stopped:?}");
    let all = [said, json, elsewhere, away, stopped].map(|ended| ended.stdout + &ended.stderr).concat();
    for token in tokens::in_wallet(&home.path().join("wallet")) {
        let nonce: String = token.as_bytes()[2..34].iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!all.contains(&nonce[..16]), "a token's nonce was printed");
    }
}

/// One stream is open, and another one was; a fragment was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_page_of_an_agent_count_its_udp() {
    let (stage, target) = (Stage::start(Way::Http2).await, v4(echo().await));
    let mut first = stage.program().await;
    first.echo(&target, 4).await;
    drop(first);
    stage.has_streams(0).await;
    let mut program = stage.program().await;
    program.echo(&target, 4).await;
    let mut fragment = datagram(&target, b"a part");
    fragment[2] = 1;
    program.socket.send_to(&fragment, program.relay).await.unwrap();
    stage.dropped(1).await;
    let said = status(&stage.agent_file, stage.agent.admin, &[]);
    said.assert_stopped();
    let line = "  udp         1 streams open, 2 opened, 1 datagrams lost\n";
    assert!(said.stdout.contains(line), "{}", said.stdout);
    eventually("the page counts UDP", || async {
        let page: Value = serde_json::from_str(&admin::page(stage.agent.admin, "/live.json").await).unwrap();
        let tiles =
            page["sections"].as_array().unwrap().iter().flat_map(|of| of["tiles"].as_array().unwrap());
        let udp: Vec<_> = tiles
            .filter(|tile| tile["label"].as_str().unwrap().starts_with("UDP "))
            .map(|tile| tile["value"].as_f64())
            .collect();
        (udp == [Some(1.0), Some(2.0), Some(1.0)]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_that_show_the_same_agree_and_others_do_not() {
    let [home, elsewhere] = [(); 2].map(|()| TempDir::new().unwrap());
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let other = Daemon::ready("issuer", &issuer_config(elsewhere.path(), "")).await;
    let gateway = Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", "")).await;
    let compare = |urls: &[&str]| run(["token", "inspect", "--compare"].iter().chain(urls));
    let well_known = format!("{}/.well-known/private-token-issuer-directory", issuer.http());
    let same = compare(&[&issuer.http(), &well_known, &gateway.http()]);
    same.assert_stopped();
    assert!(
        same.stdout.ends_with("They agree.\n") && same.stdout.contains("a challenge that names the key"),
        "{same:?}"
    );
    let differing = compare(&[&other.http(), &gateway.http()]);
    assert_eq!(differing.code, Some(1), "{differing:?}");
    assert!(differing.stderr.contains("they do not agree: the challenge of http://"), "{differing:?}");
    assert_eq!(compare(&[&issuer.http(), &other.http()]).code, Some(1));
    let nothing = compare(&[&issuer.http(), "http://127.0.0.1:9"]);
    assert_eq!(nothing.code, Some(70), "{nothing:?}");
    compare(&[&issuer.http()]).assert_failed(2, &["two addresses at least"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_is_asked_by_its_admin_address_and_only_one_that_is_ready_is_a_success() {
    let home = TempDir::new().unwrap();
    let of = |url: &str| run(["status", url]);
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let ready = eventually("the page has the issuer", || async {
        let said = of(&format!("http://{}/", issuer.admin));
        said.assert_stopped();
        said.stdout.starts_with("issuer ").then_some(said)
    })
    .await;
    assert!(ready.stdout.ends_with(" ready\n"), "{ready:#?}");
    assert_eq!((ready.stdout.lines().count(), ready.stderr.as_str()), (1, ""));

    // A gateway that cannot fetch a key: it reports why, and has a link that loses.
    let config = gateway_config(home.path(), "http://127.0.0.1:9", "", "1s", "");
    let gateway = Daemon::start("gateway", &config);
    let not_ready = eventually("the gateway has tried its issuer", || async {
        let said = of(&format!("http://{}", gateway.admin));
        said.stdout.contains("127.0.0.1:9 ").then_some(said)
    })
    .await;
    assert_eq!(not_ready.code, Some(1), "{not_ready:#?}");
    for part in [" not ready\n", "keys: ", "\nlink ", "\nissuer    "] {
        assert!(not_ready.stdout.contains(part), "{part:?} is not in {not_ready:#?}");
    }

    // One that is still reading its files, here a certificate that is never written: it answers before it serves.
    let fifo = home.path().join("certificate");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let tls = format!("[tls]\ncertificate = {fifo:?}\nkey = {fifo:?}\n");
    let starting = home.path().join("starting");
    std::fs::create_dir(&starting).unwrap();
    let config = gateway_config(&starting, "http://127.0.0.1:9", "", "1s", &tls);
    let starting = Postern::start(command(["gateway".as_ref(), "--config".as_ref(), config.as_os_str()]));
    let admin = starting.wait_for_address("the admin page listens on ");
    let not_yet = of(&format!("http://{admin}"));
    assert!(not_yet.code == Some(1) && not_yet.stdout.contains("start: starting"), "{not_yet:#?}");
    starting.kill();

    let other = of(&issuer.http());
    assert_eq!(other.code, Some(1), "{other:#?}");
    assert!(other.stdout.contains("no admin listener of Postern is there"), "{other:#?}");
    let nothing = of("http://127.0.0.1:9");
    assert!(nothing.code == Some(3) && nothing.stderr.contains("listen.admin"), "{nothing:#?}");
}
