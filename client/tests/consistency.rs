//! No token is minted for a key that is shown to this client alone, by gateway or issuer; for what everyone sees, tokens are.

use crate::support::gateway::Gateway;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::Config;
use postern_client::status::HopStatus;
use postern_token::UnixSeconds;
use std::sync::Arc;

/// An issuer's directory at another address.
async fn mirror_of(issuer: &Issuer) -> Arc<Issuer> {
    let mirror = Issuer::start().await;
    *mirror.keys.lock() = issuer.keys.lock().clone();
    mirror
}

async fn refused_for(agent: &RunningAgent, part: &str) {
    let looking = async {
        while !agent.process.readiness.reasons().iter().any(|reason| reason.contains(part)) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let reasons = || agent.process.readiness.reasons();
    tokio::time::timeout(HANG, looking)
        .await
        .unwrap_or_else(|_| panic!("{part:?} is not in {:?}", reasons()));
}

#[tokio::test]
async fn a_key_that_a_mirror_does_not_list_gets_no_token_until_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let (mirror, other) = (mirror_of(&issuer).await, mirror_of(&issuer).await);
    other.rotate_now();
    let with = |mirrors: Vec<String>| {
        let mut config = config(&gateway, &issuer, directory.path());
        config.issuer.consistency.mirrors = mirrors;
        config
    };
    // A witness that differs outweighs one that agrees.
    let agent = RunningAgent::start(with(vec![mirror.url(), other.url()])).await;
    refused_for(&agent, "made for this client alone").await;
    let refused = connect(agent.address, "target.example:443").await;
    assert_eq!((refused.status, issuer.signed()), (503, 0), "{}", refused.body);
    agent.stop().await;

    let agent = RunningAgent::start(with(vec!["http://127.0.0.1:1".to_owned()])).await;
    refused_for(&agent, "no mirror of the issuer's directory answers").await;
    assert_eq!(issuer.signed(), 0);
    agent.stop().await;

    // An unreachable witness does no harm if another one agrees, and a key is compared once.
    let agent = RunningAgent::start(with(vec![mirror.url(), "http://127.0.0.1:1".to_owned()])).await;
    stocked(&directory.path().join("wallet"), 8).await;
    agent.stop().await;
    std::fs::remove_file(directory.path().join("wallet")).unwrap();
    let agent = RunningAgent::start(with(vec![other.url()])).await;
    stocked(&directory.path().join("wallet"), 8).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_key_whose_times_change_gets_no_token_even_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Issuer::start().await;
    let in_hours =
        |hours: u64| UnixSeconds::now().saturating_add(std::time::Duration::from_secs(3600 * hours));
    issuer.retire_at(in_hours(24));
    let gateway = Gateway::start(&issuer).await;
    let config: Config = config(&gateway, &issuer, directory.path());
    let agent = RunningAgent::start(config.clone()).await;
    stocked(&directory.path().join("wallet"), 8).await;
    agent.stop().await;
    std::fs::remove_file(directory.path().join("wallet")).unwrap();
    issuer.retire_at(in_hours(48));
    let agent = RunningAgent::start(config).await;
    refused_for(&agent, "with other times than before").await;
    assert_eq!(issuer.signed(), 8);
    let status = agent.process.reports.collect();
    let status: HopStatus = serde_json::from_value(status["agent"].clone()).unwrap();
    assert!(status.last_failure.is_some_and(|failure| failure.sentence.contains("other times")));
    assert!(
        status.next.starts_with("waits ") && status.next.ends_with("tries again to mint 8 tokens"),
        "{}",
        status.next
    );
    agent.stop().await;
}
