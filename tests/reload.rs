//! SIGHUP over the three real daemons: accounts, keys and limits change while they serve; a file that cannot be used
//! changes nothing; the log has what changed.

use crate::support::proxy::{connect, dial};
use crate::support::site::{AgentPlan, Plan, Site, api_key, write};
use crate::support::target;
use crate::support::tokens::mint_with;
use crate::support::unit::Unit;
use crate::support::users::{Got, Users};
use std::time::Duration;

const FIRST: AgentPlan = AgentPlan { name: "first", gateways: &[0], low: 2, high: 4 };
const SECOND: AgentPlan = AgentPlan { name: "second", gateways: &[0], low: 2, high: 4 };
/// What makes a file unusable, and what the log has to name.
const NONSENSE: &str = "\n[nonsense]\n";

fn plan() -> Plan {
    Plan { quota: Some("1000/1d"), agents: vec![FIRST], ..Plan::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuers_accounts_come_and_go_without_a_restart() {
    let site = Site::started(plan()).await;
    let issuer = &site.issuer;
    assert_eq!(status_for(&site, "second"), Some(401));

    let from = reloaded(issuer, &site.issuer_config(&[FIRST, SECOND]));
    let line = issuer.logs(from, &["second"]).await;
    println!("added: {line}");
    assert_eq!(status_for(&site, "second"), None, "the new account gets tokens");
    assert_eq!(status_for(&site, "first"), None);

    let from = reloaded(issuer, &(site.issuer_config(&[SECOND]) + NONSENSE));
    let line = issuer.logs(from, &["nonsense"]).await;
    println!("bad: {line}");
    assert_eq!(status_for(&site, "first"), None, "the old file is in force");

    let from = reloaded(issuer, &site.issuer_config(&[SECOND]));
    let line = issuer.logs(from, &["first"]).await;
    println!("removed: {line}");
    assert_eq!(status_for(&site, "first"), Some(401), "the account is gone");
    assert_eq!(status_for(&site, "second"), None);
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_removed_and_comes_back_has_spent_what_it_spent() {
    let plan = Plan { quota: Some("10/3650d"), agents: vec![FIRST], ..Plan::default() };
    let site = Site::new(plan);
    for unit in [&site.issuer, &site.gateways[0]] {
        unit.start_ready().await;
    }
    assert_eq!(mint_with(&site.issuer, &site.gateways[0], &api_key("first"), 10), Ok(10));
    for accounts in [&[SECOND][..], &[FIRST, SECOND]] {
        let from = reloaded(&site.issuer, &site.issuer_config(accounts));
        site.issuer.logs(from, &["first"]).await;
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

    let from = reloaded(gateway, &format!("{good}[limits]\nconnections = 1\n"));
    let line = gateway.logs(from, &["connections"]).await;
    println!("changed: {line}");
    crate::support::eventually("a second connection is one too many", || async {
        (status_of(gateway, &echo).await == 503).then_some(())
    })
    .await;

    let from = reloaded(gateway, &(good.clone() + NONSENSE));
    println!("bad: {}", gateway.logs(from, &["nonsense"]).await);
    assert_eq!(status_of(gateway, &echo).await, 503, "the old file is in force");

    reloaded(gateway, &good);
    crate::support::eventually("there is room again", || async {
        (status_of(gateway, &echo).await == 407).then_some(())
    })
    .await;
    site.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agents_key_and_wallet_change_without_a_restart() {
    let site = Site::new(plan());
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

    let from = reloaded(agent, &(good.clone() + NONSENSE));
    println!("bad: {}", agent.logs(from, &["nonsense"]).await);
    assert!(!agent.readiness().await.is_plain(), "the old file is in force");

    let from = reloaded(agent, &good);
    let line = agent.logs(from, &["issuer.api_key"]).await;
    println!("changed: {line}");
    assert!(!agent.log().contains(&key), "a log has no API key");
    agent.plainly_ready().await;
    let users = Users::of(target::echo().await);
    assert_eq!(users.request(agent).await.got, Got::Tunnel);

    let from = reloaded(agent, &good.replace("high = 4", "high = 40").replace("low = 2", "low = 30"));
    println!("changed: {}", agent.logs(from, &["wallet.high"]).await);
    crate::support::eventually("the wallet is filled to the new level", || async {
        let held = agent.metrics().await?.sum("postern_wallet_tokens", &[]);
        (held == 40).then_some(())
    })
    .await;
    site.terminate();
}

/// Writes the file, sends SIGHUP, and returns the position of the log.
fn reloaded(unit: &Unit, text: &str) -> usize {
    let from = unit.log().len();
    write(unit, text);
    unit.signal("HUP");
    from
}

/// What the issuer answers to the account, when it does not give it a token.
fn status_for(site: &Site, account: &str) -> Option<u16> {
    mint_with(&site.issuer, &site.gateways[0], &api_key(account), 1).err()
}

/// What the gateway answers to a connection without a token.
async fn status_of(gateway: &Unit, target: &str) -> u16 {
    tokio::time::sleep(Duration::from_millis(20)).await; // the connection of the last look is closed
    let mut stream = dial(gateway.address).await.unwrap();
    connect(&mut stream, target, None).await.unwrap().status
}
