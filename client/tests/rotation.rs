//! Keys come and go: the agent follows them by itself, whatever is in its wallet.

use crate::support::gateway::Gateway;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_token::{Token, TokenKeyId, UnixSeconds};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The keys of the tokens that were presented, in order.
fn keys(gateway: &Gateway) -> Vec<TokenKeyId> {
    gateway.tokens().iter().map(|token| Token::parse(token).unwrap().token_key_id()).collect()
}

/// The gravest of all: a key that the issuer no longer signs with stopped every agent for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_mints_for_the_successor_when_the_issuer_no_longer_signs_with_the_old_key() {
    for (low, high) in [(4, 8), (0, 1)] {
        let world = World::with(|config| (config.wallet.low, config.wallet.high) = (low, high)).await;
        let target = echo().await.to_string();
        assert_eq!(world.connect(&target).await.status, 200);
        for _ in 0..3 {
            world.issuer.rotate_now();
            // More than any wallet holds, so that some are minted for the new key.
            for _ in 0..10 {
                let answer = world.connect(&target).await;
                assert_eq!(answer.status, 200, "low {low}: {}", answer.body);
            }
            assert_eq!(keys(&world.gateway).last(), Some(&world.issuer.key().id()));
        }
        world.gateway.expect_no_token_twice();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_challenge_is_requested_again_when_its_max_age_has_passed_and_not_before() {
    for (max_age, probes) in [(3600, 1), (0, 1 + 4)] {
        let issuer = Issuer::start().await;
        let gateway = Gateway::start(&issuer).await;
        gateway.set_max_age(max_age);
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&gateway, &issuer, directory.path());
        (config.wallet.low, config.wallet.high) = (0, 1); // each tunnel has its token minted
        let agent = RunningAgent::start(config).await;
        let target = echo().await.to_string();
        for _ in 0..4 {
            assert_eq!(connect(agent.address, &target).await.status, 200);
        }
        assert_eq!(gateway.probes(), probes, "max-age={max_age}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_challenge_is_requested_again_when_the_directory_has_a_newer_key_in_use() {
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (0, 1)).await;
    let target = echo().await.to_string();
    assert_eq!(world.connect(&target).await.status, 200);
    let probes = world.gateway.probes();
    world.issuer.rotate(); // the old key is listed and signs on
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(keys(&world.gateway)[1], world.issuer.key().id(), "no token of the old key was minted");
    assert_eq!((world.gateway.tokens().len(), world.gateway.probes()), (2, probes + 1));
}

/// Its challenge with the old key is good for an hour, and it may have been asked a moment too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_learns_of_a_newer_key_late_is_asked_again_within_seconds() {
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (0, 1)).await;
    let target = echo().await.to_string();
    world.gateway.set_max_age(3_600);
    world.gateway.stay_with(world.issuer.key());
    world.gateway.accept(world.issuer.key());
    world.issuer.rotate(); // the old key is listed and signs on
    for _ in 0..4 {
        assert_eq!(world.connect(&target).await.status, 200, "tokens of the old key are good");
    }
    assert!(world.gateway.probes() <= 3, "not before each token: {}", world.gateway.probes());
    assert!(!keys(&world.gateway).contains(&world.issuer.key().id()));
    world.gateway.catch_up();
    let minted_for_new = async {
        while keys(&world.gateway).last() != Some(&world.issuer.key().id()) {
            assert_eq!(world.connect(&target).await.status, 200);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, minted_for_new).await.expect("the agent asks again");
    world.gateway.expect_no_token_twice();
}

/// Its tokens of the newer key are doubted until it has caught up: a comparison with the issuer's directory ends nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_gateway_is_behind_the_issuer_is_asked_every_few_seconds_alone() {
    let world = World::new().await;
    let target = echo().await.to_string();
    let old = world.issuer.key();
    world.issuer.rotate(); // the old key is listed and signs on
    assert_eq!(world.connect(&target).await.status, 200);
    world.until("tokens of the newer key are kept", || world.unspent() >= 4).await;
    world.gateway.stay_with(old);
    let presented = world.gateway.tokens().len();
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(world.gateway.tokens().len(), presented + 2, "one of the newer key is refused");
    let (began, before) = (Instant::now(), world.issuer.directories.load(Ordering::SeqCst));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = world.issuer.directories.load(Ordering::SeqCst) - before;
    assert!(asked as u64 <= 2 + began.elapsed().as_secs() / 5, "asked {asked} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_behind_costs_one_token_and_the_others_are_kept() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    // Its tokens are of the present key; a second gateway behind the same address knows the key before.
    let old = crate::support::issuer::key();
    world.gateway.stay_with(old);
    let refused = world.connect(&target).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("does not list"), "{}", refused.body);
    assert_eq!(world.gateway.tokens().len(), 1, "one token shows that the key is refused");
    assert_eq!(world.unspent(), 7, "the others are kept");
    let signed = world.issuer.signed();
    world.gateway.catch_up();
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(world.issuer.signed(), signed, "the tokens that were kept are good again");
    world.gateway.expect_no_token_twice();
}

/// RFC 9578, section 4: a key is not used before its `not-before`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_minted_for_a_key_before_its_not_before() {
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (0, 1)).await;
    let target = echo().await.to_string();
    assert_eq!(world.connect(&target).await.status, 200);
    let takes_over = UnixSeconds(UnixSeconds::now().0 + 2);
    world.issuer.publish_ahead(takes_over); // and the gateway's challenge names it already, because its clock is ahead
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(UnixSeconds::now() >= takes_over, "the request waited for the successor");
    assert_eq!(keys(&world.gateway).last(), Some(&world.issuer.key().id()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_wallet_whose_key_has_retired_is_replaced_before_the_next_request() {
    let world = World::new().await;
    let target = echo().await.to_string();
    // A busy machine has filled a wallet by then.
    world.issuer.retire_at(UnixSeconds(UnixSeconds::now().0 + 6));
    let mut config = world.config();
    let World { directory, issuer, gateway, agent } = world;
    agent.stop().await;
    std::fs::remove_file(&config.wallet.path).unwrap(); // its tokens do not know when their key retires
    config.wallet.low = 1;
    let agent = RunningAgent::start(config).await;
    let wallet = directory.path().join("wallet");
    let stocked = async {
        while unspent(&wallet) < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(HANG, stocked).await.unwrap();
    let signed = issuer.signed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    issuer.rotate_now();
    issuer.retire_at(UnixSeconds::MAX);
    let replaced = async {
        while issuer.signed() < signed + 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, replaced).await.expect("tokens are minted when the old ones spoil");
    // A batch that was under way while the key changed is signed in vain, and minted again.
    let opened = async {
        while connect(agent.address, &target).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, opened).await.unwrap();
    assert_eq!(gateway.tokens().len(), 1, "nothing that has spoiled was sent");
    for _ in 0..9 {
        assert_eq!(
            connect(agent.address, &target).await.status,
            200,
            "tokens of a key without end are minted, too"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_clock_is_wrong_works_by_the_issuers_and_reports_it() {
    for (ahead, direction) in [(60 * 86_400, "behind"), (-3_600, "ahead of")] {
        let issuer = Issuer::start().await;
        issuer.set_clock_ahead(ahead);
        let there = UnixSeconds::now().0.checked_add_signed(ahead).unwrap();
        issuer.retire_at(UnixSeconds(there + 600));
        let gateway = Gateway::start(&issuer).await;
        let directory = tempfile::tempdir().unwrap();
        let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
        let answer = connect(agent.address, &echo().await.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let told = || agent.process.readiness.degraded().join("; ");
        let sentence = format!("{direction} the issuer's");
        let telling = async {
            while !told().contains(&sentence) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(HANG, telling).await.unwrap_or_else(|_| panic!("{}", told()));
    }
}
