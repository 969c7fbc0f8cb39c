//! Gateways that are down, refuse, hang and come back: what it costs, what is reported, and which one is used.

use crate::support::gateway::{Gateway, Mood};
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::Urls;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_store_costs_the_tokens_under_way_and_no_others() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.gateway.set_mood(Mood::Unavailable);
    for _ in 0..5 {
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert!(answer.body.contains("The store is away"), "{}", answer.body);
        assert!(field(&answer.head, "retry-after").is_some(), "{}", answer.head);
    }
    assert_eq!(world.gateway.tokens().len(), 1, "one token was sent before it was known");
    assert!(world.gateway.probes() > 2, "the agent probes it without a token");
    let reasons = world.agent.process.readiness.reasons().join("; ");
    assert!(reasons.contains("gateway: ") && reasons.contains("The store is away"), "{reasons}");

    world.gateway.set_mood(Mood::Well);
    let began = Instant::now();
    let mut answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "after {:?}: {}", began.elapsed(), answer.body);
    expect_echo(&mut answer.stream).await;
    assert_eq!(world.gateway.tokens().len(), 2);
    assert_eq!(world.agent.process.readiness.reasons(), Vec::<String>::new());
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_limits_this_source_costs_the_token_under_way_and_is_left_alone_as_long_as_it_says() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.gateway.set_mood(Mood::Limiting);
    for _ in 0..5 {
        let answer = world.connect(&target).await;
        assert!(matches!(answer.status, 429 | 503), "{} {}", answer.status, answer.body);
        assert!(answer.body.contains("Too many of"), "{}", answer.body);
        assert!(field(&answer.head, "retry-after").is_some(), "{}", answer.head);
    }
    assert_eq!(world.gateway.tokens().len(), 1, "one token was sent before it was known");
    let reasons = world.agent.process.readiness.reasons().join("; ");
    assert!(reasons.contains("it answered 429") && reasons.contains("Too many of"), "{reasons}");

    world.gateway.set_mood(Mood::Well);
    until("the agent has found out", || world.agent.process.readiness.reasons().is_empty()).await;
    let mut answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    expect_echo(&mut answer.stream).await;
    assert_eq!(world.gateway.tokens().len(), 2);
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_shorter_than_a_requests_patience_is_not_noticed_by_its_user() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.gateway.set_mood(Mood::Unavailable);
    let (agent, gateway) = (world.agent.address, world.gateway.clone());
    let request = tokio::spawn(async move { connect(agent, &target).await });
    until("a token was sent in vain", || gateway.tokens().len() == 1).await;
    gateway.set_mood(Mood::Well);
    let answer = request.await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(gateway.tokens().len(), 2, "one was replaced, once");
    gateway.expect_no_token_twice();
}

/// The kernel still accepts connections for a process that hangs, so the agent sends a token before it can know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_hangs_is_found_out_by_a_probe_and_costs_no_more_tokens() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.gateway.set_mood(Mood::Frozen);
    let agent = world.agent.address;
    let stuck = tokio::spawn({
        let target = target.clone();
        async move { connect(agent, &target).await.status }
    });
    until("the first token is under way", || world.gateway.tokens().len() == 1).await;
    until("the agent reports that the gateway hangs", || {
        world.agent.process.readiness.reasons().iter().any(|reason| reason.contains("did not answer within"))
    })
    .await;
    for _ in 0..3 {
        assert_eq!(world.connect(&target).await.status, 502);
    }
    assert_eq!(world.gateway.tokens().len(), 1, "tokens are kept while it hangs");
    world.gateway.set_mood(Mood::Well);
    assert_eq!(world.connect(&target).await.status, 200);
    stuck.abort();
}

/// A slow target is none of the gateway's fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_answers_others_is_not_doubted_for_one_slow_target() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.gateway.hold_next(Duration::from_millis(2_500));
    let agent = world.agent.address;
    let slow = tokio::spawn({
        let target = target.clone();
        async move { connect(agent, &target).await.status }
    });
    until("the slow one is under way", || world.gateway.tokens().len() == 1).await;
    let began = Instant::now();
    while !slow.is_finished() {
        assert_eq!(world.connect(&target).await.status, 200);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(slow.await.unwrap(), 200);
    assert!(began.elapsed() > Duration::from_secs(2));
    assert_eq!(world.agent.process.readiness.reasons(), Vec::<String>::new());
}

/// Two gateways of one fleet: they share issuer and challenge.
async fn two() -> (std::sync::Arc<Issuer>, [std::sync::Arc<Gateway>; 2]) {
    let issuer = Issuer::start().await;
    let gateways = [Gateway::start(&issuer).await, Gateway::start(&issuer).await];
    (issuer, gateways)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_gateway_of_the_list_is_used_while_the_first_is_away() {
    for mood in [Mood::Unavailable, Mood::Closing] {
        let (issuer, [first, second]) = two().await;
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&first, &issuer, directory.path());
        config.gateway.url = Urls::Several(vec![first.url(), second.url()]);
        let agent = RunningAgent::start(config).await;
        let target = echo().await.to_string();
        assert_eq!(connect(agent.address, &target).await.status, 200);
        assert_eq!((first.tokens().len(), second.heads().len()), (1, 0), "the second is left alone");

        first.set_mood(mood);
        for _ in 0..4 {
            let answer = connect(agent.address, &target).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        assert!(first.tokens().len() <= 3 && second.tokens().len() >= 3, "{}", first.tokens().len());
        until("readiness names the first", || {
            agent.process.readiness.degraded().join("").contains(&first.url())
        })
        .await;
        until("tokens are there", || agent.process.readiness.reasons().is_empty()).await;

        first.set_mood(Mood::Well);
        until("the first is used again", || agent.process.readiness.degraded().is_empty()).await;
        let before = second.tokens().len();
        assert_eq!(connect(agent.address, &target).await.status, 200);
        assert_eq!(second.tokens().len(), before);
        first.expect_no_token_twice();
        second.expect_no_token_twice();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_first_gateway_is_down_from_the_start_works_and_costs_nothing() {
    let (issuer, [gateway, _]) = two().await;
    let closed = postern_testkit::ports::closed();
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&gateway, &issuer, directory.path());
    config.gateway.url = Urls::Several(vec![format!("http://{closed}"), gateway.url()]);
    let agent = RunningAgent::start(config).await;
    let answer = connect(agent.address, &echo().await.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(gateway.tokens().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_agent_sends_nothing_until_its_readiness_is_requested() {
    let world = World::new().await;
    world.stocked(8).await;
    let probes = world.gateway.probes();
    world.gateway.set_mood(Mood::Unavailable);
    tokio::time::sleep(Duration::from_millis(5_500)).await; // longer than news is believed
    assert_eq!(world.gateway.probes(), probes, "an idle agent sends nothing");
    world.agent.process.readiness.look();
    until("it has found out", || !world.agent.process.readiness.reasons().is_empty()).await;
    assert!(world.gateway.tokens().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_nothing_can_be_minted_reaches_the_log_the_readiness_and_the_program() {
    let issuer = Issuer::start().await;
    issuer.refuse(401, None, "This API key is not one of this issuer's", usize::MAX);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 503);
    for place in [&answer.body, &field(&answer.head, "proxy-status").unwrap()] {
        assert!(place.contains("401 Unauthorized") && place.contains("not one of this issuer's"), "{place}");
        assert!(place.contains("check the account's key"), "{place}");
    }
    let reasons = agent.process.readiness.reasons().join("; ");
    assert!(reasons.contains("not one of this issuer's"), "{reasons}");
}

/// A gateway that is not in use is not probed: earlier observations of it may be outdated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_first_gateway_serves_is_ready_whatever_the_second_last_answered() {
    let (issuer, [first, second]) = two().await;
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&first, &issuer, directory.path());
    config.gateway.url = Urls::Several(vec![first.url(), second.url()]);
    let agent = RunningAgent::start(config).await;
    let target = echo().await.to_string();
    assert_eq!(connect(agent.address, &target).await.status, 200);
    for gateway in [&first, &second] {
        gateway.set_mood(Mood::Unavailable);
    }
    assert_eq!(connect(agent.address, &target).await.status, 503);
    let reasons = || agent.process.readiness.reasons().join("; ");
    until("both are known to be away", || [&first, &second].iter().all(|one| reasons().contains(&one.url())))
        .await;
    first.set_mood(Mood::Well);
    until("the first serves again", || reasons().is_empty()).await;
    assert_eq!(agent.process.readiness.degraded(), Vec::<String>::new());
    assert_eq!(connect(agent.address, &target).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_keeps_no_token_ready_is_ready_with_an_empty_wallet() {
    let world = World::with(|config| config.wallet.low = 0).await;
    until("it is ready", || world.agent.process.readiness.reasons().is_empty()).await;
    assert_eq!(world.unspent(), 0);
    assert_eq!(world.connect(&echo().await.to_string()).await.status, 200);
}
