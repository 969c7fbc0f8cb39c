//! Several issuers with the same keys: the next one mints while one is away, or has no more for the account.

use crate::support::gateway::Gateway;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::Urls;

#[tokio::test]
async fn the_next_issuer_mints_while_the_first_is_away_and_a_refusal_of_the_account_counts_for_all() {
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
    first.refuse(403, None, "account is disabled", usize::MAX);
    let agent = RunningAgent::start(config).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("account is disabled"), "{}", answer.body);
    assert_eq!(second.signed(), 8, "another issuer is not tried for an account that is refused");
    agent.stop().await;
}

#[tokio::test]
async fn the_next_issuer_gives_its_part_of_the_quota_and_the_first_is_left_alone_for_as_long_as_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = [Issuer::start().await, Issuer::start().await];
    *second.keys.lock() = first.keys.lock().clone();
    let gateway = Gateway::start(&first).await;
    let mut config = config(&gateway, &first, directory.path());
    config.issuer.url = Some(Urls::Several(vec![first.url(), second.url()]));
    first.refuse(429, Some(1_000), "quota is spent", usize::MAX);
    let agent = RunningAgent::start(config).await;
    stocked(&directory.path().join("wallet"), 8).await;
    assert_eq!((first.signed(), second.signed()), (0, 8));

    first.serve_again(); // its next period has not begun, by what it said
    second.refuse(429, Some(2_000), "quota is spent here", usize::MAX);
    let target = echo().await.to_string();
    for _ in 0..8 {
        assert_eq!(connect(agent.address, &target).await.status, 200);
    }
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!((answer.status, first.signed()), (503, 0));
    let seconds: u64 = field(&answer.head, "retry-after").unwrap().parse().unwrap();
    // A quota may be raised: both are asked again within five minutes, whatever their Retry-After.
    assert!((240..=288).contains(&seconds), "{seconds} s");
    agent.stop().await;
}
