//! A gateway whose challenge has a mark: what becomes of tokens when it changes, and of a gateway that makes names of it.

use crate::support::gateway::{Gateway, Step, challenge, digest_in, marked};
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_token::{ChallengeDigest, Mark, TokenChallenge, TokenType};
use std::time::Duration;

/// An agent with a full wallet for mark 0, of a gateway that it knows by name.
async fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    gateway.ask_for(marked(0));
    let mut config = config(&gateway, &issuer, directory.path());
    config.gateway.origin = Some("proxy.example".to_owned());
    let agent = RunningAgent::start(config).await;
    let world = World { directory, issuer, gateway, agent };
    world.stocked(8).await;
    world
}

impl World {
    async fn restarted(self, change: impl FnOnce(&std::path::Path)) -> Self {
        let mut config = self.config();
        config.gateway.origin = Some("proxy.example".to_owned());
        let Self { directory, issuer, gateway, agent } = self;
        agent.stop().await;
        change(&config.wallet.path);
        let agent = RunningAgent::start(config).await;
        Self { directory, issuer, gateway, agent }
    }

    fn digests(&self) -> Vec<ChallengeDigest> {
        self.gateway.tokens().iter().map(|token| digest_in(token)).collect()
    }
}

/// One of several servers lost its records: most tokens of the mark before are good, some are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_the_mark_before_are_used_up_first() {
    let (world, target) = (world().await, echo().await.to_string());
    let (old, new) = (marked(0).digest(), marked(1).digest());
    world.gateway.ask_for(marked(1));
    world.gateway.take_too(&marked(0));
    for number in 0..6 {
        if number % 3 == 0 {
            world.gateway.then(Step::Bad);
        }
        assert_eq!(world.connect(&target).await.status, 200);
    }
    assert_eq!(world.digests(), [old; 8], "two were refused, and each cost one token more");
    assert_eq!(world.issuer.signed(), 8, "nothing was signed meanwhile");
    for signed in 9..=12 {
        assert_eq!(world.connect(&target).await.status, 200);
        assert_eq!(world.issuer.signed(), signed, "the new mark is on trial: one token on need");
    }
    assert_eq!(world.digests()[8..], [new; 4]);
    let readiness = &world.agent.process.readiness;
    world.until("the trial is reported", || readiness.degraded().join("").contains("has a new mark")).await;
    assert_eq!(readiness.reasons(), [""; 0]);
    assert_eq!(world.unspent(), 0);
    world.gateway.expect_no_token_twice();
}

/// Everything was lost: the tokens of the mark before are refused, a few a tunnel, and then given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_whose_tokens_are_refused_in_a_row_is_given_up() {
    let (world, target) = (world().await, echo().await.to_string());
    world.gateway.ask_for(marked(1));
    let mut presented = Vec::new();
    for _ in 0..4 {
        let before = world.gateway.tokens().len();
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        presented.push(world.gateway.tokens().len() - before);
    }
    assert_eq!(presented, [4, 3, 2, 1]);
    let (old, new) = (marked(0).digest(), marked(1).digest());
    assert_eq!(world.digests(), [old, old, old, new, old, old, new, old, new, new]);
    assert_eq!((world.issuer.signed(), world.unspent()), (8 + 4, 0), "the rest was dropped");
}

/// A gateway that names a mark for each request, or whose store forgets everything all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_names_one_mark_after_another_gets_few_tokens_and_is_reported() {
    let world = world().await;
    world.gateway.tag(Some(100));
    let connect = |_| connect(world.agent.address, "target.example:443");
    let mut last = None;
    for number in 0..12 {
        let before = world.gateway.tokens().len();
        last = Some(connect(number).await);
        assert!(world.gateway.tokens().len() <= before + 4);
    }
    assert!(world.issuer.signed() <= 8 + 4, "{} were signed", world.issuer.signed());
    let answer = last.unwrap();
    assert_eq!(answer.status, 503);
    let told = |text: &str| {
        ["tell clients apart", "keeps losing records", "Ask the gateway's operator"]
            .iter()
            .all(|part| text.contains(part))
    };
    assert!(told(&answer.body), "{}", answer.body);
    let reasons = world.agent.process.readiness.reasons().join("; ");
    assert!(told(&reasons), "{reasons}");

    // Nor after a restart, and whatever else it names.
    let (signed, target) = (world.issuer.signed(), echo().await.to_string());
    let world = world.restarted(|_| {}).await;
    for _ in 0..3 {
        let answer = world.connect(&target).await;
        assert!(answer.status != 200 && told(&answer.body), "{} {}", answer.status, answer.body);
    }
    assert_eq!(world.issuer.signed(), signed);
    // A mark that is known is taken again.
    world.gateway.tag(None);
    world.gateway.ask_for(marked(0));
    let world = world.restarted(|_| {}).await;
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.gateway.expect_no_token_twice();
}

/// The same without marks, of an agent that has no name to compare the gateway's with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_names_one_challenge_after_another_gets_few_tokens_and_is_reported() {
    let world = World::new().await;
    world.stocked(8).await;
    world.gateway.rename();
    let mut last = None;
    for _ in 0..20 {
        last = Some(world.connect("target.example:443").await);
    }
    assert!(world.issuer.signed() <= 8 + 4, "{} were signed", world.issuer.signed());
    let answer = last.unwrap();
    assert_eq!(answer.status, 503);
    for part in ["another challenge, after 4 new ones", "the issuer's quota", "Ask the gateway's operator"] {
        assert!(answer.body.contains(part), "{}", answer.body);
    }
    // Nor after a restart; and the challenge that is known is taken again.
    let (signed, target) = (world.issuer.signed(), echo().await.to_string());
    let World { directory, issuer, gateway, agent } = world;
    agent.stop().await;
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let world = World { directory, issuer, gateway, agent };
    for _ in 0..3 {
        assert_ne!(world.connect(&target).await.status, 200);
    }
    assert_eq!(world.issuer.signed(), signed);
    world.gateway.tag(None);
    world.gateway.ask_for(challenge("proxy.example"));
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_has_lasted_is_minted_for_ahead() {
    let (world, target) = (world().await, echo().await.to_string());
    world.gateway.ask_for(marked(1));
    world.gateway.take_too(&marked(0));
    world.gateway.then(Step::Bad);
    for _ in 0..8 {
        assert_eq!(world.connect(&target).await.status, 200);
    }
    assert_eq!((world.issuer.signed(), world.unspent()), (8 + 1, 0));
    // As if the longest trial had passed.
    let world = world.restarted(|wallet| {
        let path = wallet.with_extension("marks");
        let text = std::fs::read_to_string(&path).unwrap();
        let earlier = |line: &str| match line.split_once("\"since\": ") {
            Some((front, rest)) => {
                let since: u64 = rest.trim_end_matches(',').parse().unwrap();
                format!("{front}\"since\": {},", since - 1200)
            }
            None => line.to_owned(),
        };
        let text: Vec<_> = text.lines().map(earlier).collect();
        std::fs::write(&path, text.join("\n")).unwrap();
    });
    let world = world.await;
    world.stocked(8).await;
    assert_eq!(world.issuer.signed(), 8 + 1 + 8);
}

/// What else could be a name for a client is refused once there are marks: nothing is minted for it, or sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_marks_keeps_to_its_name_and_one_mark() {
    let world = world().await;
    let target = echo().await.to_string();
    let second = Mark::new([9; 16]).second_name("proxy.example");
    let of = |context, origins: &[&str]| {
        TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", context, origins).unwrap()
    };
    for (refused, part) in [
        (of(Some([7; 32]), &["proxy.example", &second]), "could tell clients apart"),
        (of(Some([7; 32]), &["proxy.example"]), "could tell clients apart"),
        (of(None, &["proxy.example", "you.proxy.example"]), "could tell clients apart"),
        (of(None, &["proxy.example", &second, "you.example"]), "could tell clients apart"),
    ] {
        world.gateway.ask_for(refused.clone());
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 502, "{}", answer.body);
        let known = answer.body.contains(part) || answer.body.contains("refused two tokens");
        assert!(known, "{}", answer.body);
        assert!(!world.digests().contains(&refused.digest()));
        world.gateway.ask_for(marked(0));
        assert_eq!(world.connect(&target).await.status, 200);
    }
    // Its name alone is an answer of before, or of a gateway whose marks are switched off.
    world.gateway.ask_for(challenge("proxy.example"));
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// A new token key brings a new mark, which is none of those that are counted, and a stock of tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_new_token_keys_are_not_counted_and_not_on_trial() {
    let (world, target) = (world().await, echo().await.to_string());
    for number in 1..=8 {
        world.issuer.rotate_now();
        world.gateway.ask_for(marked(number));
        for _ in 0..4 {
            let answer = world.connect(&target).await;
            assert_eq!(answer.status, 200, "{number}: {}", answer.body);
        }
        world
            .until("those of the key before are dropped, and a stock is there", || world.unspent() >= 4)
            .await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    world.gateway.expect_no_token_twice();
}
