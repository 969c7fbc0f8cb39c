//! Several issuers with the same keys: the next one mints while one is away.

use crate::support::gateway::Gateway;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::Urls;

#[tokio::test]
async fn the_next_issuer_mints_while_the_first_is_away_and_what_is_said_of_the_account_counts_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = [Issuer::start().await, Issuer::start().await];
    *second.keys.lock() = first.keys.lock().clone();
    let gateway = Gateway::start(&first).await;
    let mut config = config(&gateway, &first, directory.path());
    config.issuer.url = Some(Urls::Several(vec!["http://127.0.0.1:1".to_owned(), first.url(), second.url()]));
    first.refuse(503, Some(3_000), "signing pool full", usize::MAX);
    let agent = RunningAgent::start(config.clone()).await;
    let wallet = directory.path().join("wallet");
    stocked(&wallet, 8).await;
    assert_eq!((first.signed(), second.signed()), (0, 8), "no request waits for the one that is away");
    assert_eq!(agent.process.readiness.reasons(), [""; 0]);
    agent.stop().await;

    std::fs::remove_file(&wallet).unwrap();
    first.refuse(429, None, "quota is spent", usize::MAX);
    let agent = RunningAgent::start(config).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("quota is spent"), "{}", answer.body);
    assert_eq!(second.signed(), 8, "another issuer is no way around a quota");
    agent.stop().await;
}
