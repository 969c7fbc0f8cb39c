//! Changes over the three real daemons while they serve: of accounts by a command, of keys and limits by SIGHUP. A file that cannot
//! be used changes nothing; the log has what changed.

use crate::support::daemon::{Daemon, apply, declared, gateway_config, issuer_config};
use crate::support::proxy::{connect, dial, echoes};
use crate::support::reload::reload;
use crate::support::site::{AgentPlan, Plan, Site, api_key, write};
use crate::support::tokens::mint_with;
use crate::support::unit::Unit;
use crate::support::users::{Got, Users};
use crate::support::{admin, eventually, target};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const FIRST: AgentPlan = AgentPlan { name: "first", gateways: &[0], low: 2, high: 4 };
const SECOND: AgentPlan = AgentPlan { name: "second", gateways: &[0], low: 2, high: 4 };
const BUSY: AgentPlan = AgentPlan { name: "busy", gateways: &[0], low: 20, high: 40 };
/// Reloads of a fleet of three daemons under load, without `POSTERN_RELOADS`.
const THOUSAND: usize = 1_000;
/// A section that makes a file unusable, and that the log has to name.
const NONSENSE: &str = "\n[nonsense]\n";

fn plan() -> Plan {
    Plan { quota: Some("1000/1d"), agents: vec![FIRST], ..Plan::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuers_accounts_come_and_go_without_a_restart() {
    let site = Site::started(plan()).await;
    let issuer = &site.issuer;
    assert_eq!(status_for(&site, "second"), Some(401));

    site.declare(&[FIRST, SECOND]);
    assert_eq!(status_for(&site, "second"), None, "the new account gets tokens");
    assert_eq!(status_for(&site, "first"), None);

    let twice = declared("second", "another key", "1/1d") + &declared("second", "a third key", "1/1d");
    apply(&issuer.config, &twice).assert_failed(2, &["\"second\" is there twice"]);
    assert_eq!(status_for(&site, "first"), None, "what was declared before is in force");

    let from = reload(issuer, &(site.issuer_config() + NONSENSE));
    let line = issuer.logs(from, &["nonsense"]).await;
    println!("bad: {line}");
    assert_eq!(status_for(&site, "first"), None, "the old file is in force");
    write(issuer, &site.issuer_config());

    site.declare(&[SECOND]);
    assert_eq!(status_for(&site, "first"), Some(401), "the account is gone");
    assert_eq!(status_for(&site, "second"), None);
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_removed_and_comes_back_has_spent_what_it_spent() {
    let plan = Plan { quota: Some("10/3650d"), agents: vec![FIRST], ..Plan::default() };
    let site = Site::new(plan);
    site.declare(&[FIRST]);
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    assert_eq!(mint_with(&site.issuer, &site.gateways[0], &api_key("first"), 10), Ok(10));
    for accounts in [&[SECOND][..], &[FIRST, SECOND]] {
        site.declare(accounts);
    }
    assert_eq!(status_for(&site, "first"), Some(429), "a quota is not had twice");
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateways_limits_change_without_a_restart() {
    let site = Site::started(plan()).await;
    let gateway = &site.gateways[0];
    let good = std::fs::read_to_string(&gateway.config).unwrap();
    let echo = target::echo().await.to_string();
    // A tunnel, before and after.
    let mut held = dial(site.agents[0].address).await.unwrap();
    assert_eq!(connect(&mut held, &echo, None).await.unwrap().status, 200);
    assert_eq!(status_of(gateway, &echo).await, 407);

    let from = reload(gateway, &format!("{good}[limits]\nconnections = 1\n"));
    let line = gateway.logs(from, &["connections"]).await;
    println!("changed: {line}");
    crate::support::eventually("a second connection is one too many", || async {
        (status_of(gateway, &echo).await == 503).then_some(())
    })
    .await;

    let from = reload(gateway, &(good.clone() + NONSENSE));
    println!("bad: {}", gateway.logs(from, &["nonsense"]).await);
    assert_eq!(status_of(gateway, &echo).await, 503, "the old file is in force");

    reload(gateway, &good);
    crate::support::eventually("there is room again", || async {
        (status_of(gateway, &echo).await == 407).then_some(())
    })
    .await;
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_key_and_wallet_change_without_a_restart() {
    let site = Site::new(plan());
    site.declare(&[FIRST]);
    let agent = &site.agents[0];
    let good = std::fs::read_to_string(&agent.config).unwrap();
    let key = api_key("first");
    write(agent, &good.replace(&key, &api_key("a stranger")));
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    agent.start();
    let ailing = agent.readiness_when("refused by its issuer", |says| says.body.contains("401")).await;
    println!("with a wrong key: {}", ailing.body.trim());

    let from = reload(agent, &(good.clone() + NONSENSE));
    println!("bad: {}", agent.logs(from, &["nonsense"]).await);
    assert!(!agent.readiness().await.is_plain(), "the old file is in force");

    let from = reload(agent, &good);
    let line = agent.logs(from, &["issuer.api_key"]).await;
    println!("changed: {line}");
    assert!(!agent.log().contains(&key), "a log has no API key");
    agent.plainly_ready().await;

    // The key in a file, which is missing, has another one, and then the right one. It is asked for more tokens, so it mints.
    let file = agent.config.with_file_name("key");
    let more = good.replace("high = 4", "high = 8").replace("low = 2", "low = 6");
    let in_file = more.replace(&format!("api_key = \"{key}\""), &format!("api_key_file = {file:?}"));
    let from = reload(agent, &in_file);
    agent.logs(from, &["cannot be used", "API key cannot be read"]).await;
    std::fs::write(&file, api_key("a stranger") + "\n").unwrap();
    let from = reload(agent, &in_file);
    agent.logs(from, &["issuer.api_key_file"]).await;
    agent.readiness_when("refused by its issuer", |says| says.body.contains("401")).await;
    std::fs::write(&file, format!("\n{key}\n")).unwrap();
    reload(agent, &in_file);
    agent.plainly_ready().await;
    let users = Users::of(target::echo().await);
    assert_eq!(users.request(agent).await.got, Got::Tunnel);

    let from = reload(agent, &good.replace("high = 4", "high = 40").replace("low = 2", "low = 30"));
    println!("changed: {}", agent.logs(from, &["wallet.high"]).await);
    crate::support::eventually("the wallet is filled to the new level", || async {
        let held = agent.metrics().await?.sum("postern_wallet_tokens", &[]);
        (held == 40).then_some(())
    })
    .await;
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_fail_no_tunnel_and_leave_nothing_open() {
    let site = Site::started(Plan { quota: Some("1000000/1d"), agents: vec![BUSY], ..Plan::default() }).await;
    let [gateway, agent] = [&site.gateways[0], &site.agents[0]];
    let [gateway_file, agent_file] =
        [gateway, agent].map(|unit| std::fs::read_to_string(&unit.config).unwrap());
    let other_rules = "[egress]\nrules = [{ deny = [\"blocked.example\"] }]\n";
    let other_gateway = gateway_file
        .replace("[egress]\n", other_rules)
        .replace("origin = \"proxy.example\"\n", "origin = \"proxy.example\"\nmax_age = \"1m\"\n")
        .replace("[store]\n", "[store]\nfsync = \"always\"\n")
        .replace("poll = \"1s\"\n", "poll = \"2s\"\n")
        + "[egress.resolver]\nkind = \"udp\"\nservers = [\"127.0.0.1:53\"]\n[limits]\ndial_timeout = \"9s\"\n";
    let rounds = [
        [
            (&site.issuer, site.issuer_config() + "[signing]\nthreads = 1\n"),
            (gateway, other_gateway),
            (agent, agent_file.replace("low = 20", "low = 30")),
        ],
        [(&site.issuer, site.issuer_config()), (gateway, gateway_file), (agent, agent_file)],
    ];
    let echo = target::echo().await;
    let mut held = dial(agent.address).await.unwrap();
    assert_eq!(connect(&mut held, &echo.to_string(), None).await.unwrap().status, 200);
    let users = Users::of(echo);
    let programs: Vec<_> = (0..4).map(|_| users.program(agent, Duration::from_millis(10))).collect();
    let mut open = Vec::new();
    let reloads = std::env::var("POSTERN_RELOADS").map_or(THOUSAND, |text| text.parse().unwrap());
    for round in 0..reloads.div_ceil(3) {
        // Tokens, threads and connections have come to stay by now.
        if round == 30 {
            open = open_files(&site).await;
        }
        let files = &rounds[round % 2];
        let from = files.each_ref().map(|(unit, text)| reload(unit, text));
        for ((unit, _), from) in files.iter().zip(from) {
            unit.logs(from, &["is in force from now on"]).await;
        }
        echoes(&mut held, b"open through all of it").await.unwrap();
    }
    for program in programs {
        program.stop().await;
    }
    users.assert_all_served("reloads under load");
    println!(
        "{} tunnels; open files before and after: {open:?}, {:?}",
        users.attempts().len(),
        open_files(&site).await
    );
    for (unit, before) in site.units().zip(open) {
        let after = files_of(unit).await;
        // Connections come and go; what each reload leaves open adds up.
        assert!(after < before + 20, "{} has {after} open files, and had {before}", unit.name);
    }
    site.terminate();
}

async fn open_files(site: &Site) -> Vec<u64> {
    let mut open = Vec::new();
    for unit in site.units() {
        open.push(files_of(unit).await);
    }
    open
}

async fn files_of(unit: &Unit) -> u64 {
    unit.metrics().await.expect("it serves").sum("process_open_fds", &[])
}

/// A directory of another time, which hangs when it is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_keys_takes_the_place_of_a_directory_that_hangs() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let url = format!("{}/.well-known/private-token-issuer-directory", issuer.http());
    let keys = reqwest::get(url).await.unwrap().text().await.unwrap();
    let file = home.path().join("keys.json");
    std::fs::write(&file, &keys).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = format!("http://{}", listener.local_addr().unwrap());
    let config = gateway_config(home.path(), &directory, "poll = \"1s\"", "1s", "");
    let gateway = Daemon::start("gateway", &config);
    let (mut first, _) = listener.accept().await.unwrap();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nDate: Sat, 29 Feb 2020 00:00:00 GMT\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{keys}",
        keys.len()
    );
    first.read_buf(&mut Vec::new()).await.unwrap();
    first.write_all(answer.as_bytes()).await.unwrap();
    eventually("the clocks differ", || async {
        let (status, body) = admin::get(gateway.admin, "/readyz").await?;
        (status == 200 && body.contains("ahead of the issuer's")).then_some(())
    })
    .await;
    let _second = listener.accept().await.unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    let line = text.lines().find(|line| line.starts_with("directory = ")).unwrap();
    std::fs::write(&config, text.replace(line, &format!("keys = {file:?}"))).unwrap();
    let began = Instant::now();
    gateway.process.signal("HUP");
    eventually("it is ready, and knows of no clock", || async {
        (admin::get(gateway.admin, "/readyz").await? == (200, "ready\n".to_owned())).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(6), "a fetch takes 10 s: {:?}", began.elapsed());
}

/// Returns the status of the issuer's refusal to an account; `None` with a token.
fn status_for(site: &Site, account: &str) -> Option<u16> {
    mint_with(&site.issuer, &site.gateways[0], &api_key(account), 1).err()
}

/// Returns the gateway's status for a request without a token.
async fn status_of(gateway: &Unit, target: &str) -> u16 {
    tokio::time::sleep(Duration::from_millis(20)).await; // the connection of the last look is closed
    let mut stream = dial(gateway.address).await.unwrap();
    connect(&mut stream, target, None).await.unwrap().status
}
