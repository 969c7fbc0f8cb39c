//! SIGHUP over real daemons: accounts change while they serve; a file that cannot be used changes nothing; the log says what
//! changed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::site::{AgentPlan, Plan, Site, api_key, write};
use support::tokens::mint_with;
use support::unit::Unit;

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

/// Writes the file, sends SIGHUP, and says where the log was.
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
