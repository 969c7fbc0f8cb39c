//! A gateway whose challenge has a mark: what becomes of tokens when it changes, and of a gateway that makes names of it.

use crate::support::gateway::{Gateway, Step, challenge, digest_in, marked};
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_token::{ChallengeDigest, Mark, TokenChallenge, TokenType};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

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
    assert_eq!(world.issuer.signed(), 8, "nothing was signed for these requests");
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
async fn a_gateway_that_names_one_mark_after_another_waits_longer_and_longer_and_is_reported() {
    let world = world().await;
    world.gateway.tag(Some(100));
    let began = Instant::now();
    for _ in 0..4 {
        let before = world.gateway.tokens().len();
        connect(world.agent.address, "target.example:443").await;
        assert!(world.gateway.tokens().len() <= before + 4);
    }
    let signed = world.issuer.signed();
    let most = 8 + 4 + began.elapsed().as_secs_f64().log2().max(0.0) as usize + 2;
    assert!((8 + 5..=most).contains(&signed), "{signed} were signed within {:?}", began.elapsed());

    // As after some more; nor after a restart, and whatever else it names.
    let world = world.restarted(|wallet| add_new_challenges(wallet, 8)).await;
    let target = echo().await.to_string();
    for _ in 0..3 {
        let answer = world.connect(&target).await;
        assert!(answer.status == 503 && told(&answer.body), "{} {}", answer.status, answer.body);
        let retry_after: u64 = field(&answer.head, "retry-after").unwrap().parse().unwrap();
        assert!((60..=300).contains(&retry_after), "{}", answer.head);
    }
    assert_eq!(world.issuer.signed(), signed);
    let reasons = world.agent.process.readiness.reasons().join("; ");
    assert!(told(&reasons), "{reasons}");
    // A mark that is known is taken again.
    world.gateway.tag(None);
    world.gateway.ask_for(marked(0));
    let world = world.restarted(|_| {}).await;
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.gateway.expect_no_token_twice();
}

fn told(text: &str) -> bool {
    let parts = ["tell clients apart", "keeps losing records", "Ask the gateway's operator"];
    parts.iter().all(|part| text.contains(part))
}

/// A store that is emptied six times: a request waits for the pause, and is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_a_short_pause() {
    let (world, target) = (world().await, echo().await.to_string());
    let began = Instant::now();
    for number in 1..=6 {
        world.gateway.ask_for(marked(number));
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 200, "{number}: {}", answer.body);
    }
    assert!(
        began.elapsed() >= Duration::from_secs(2),
        "the fifth and sixth came after {:?}",
        began.elapsed()
    );
    world.gateway.expect_no_token_twice();
}

/// As if the gateway had named so many further new challenges just now.
fn add_new_challenges(wallet: &Path, count: u64) {
    let path = wallet.with_extension("marks");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (_, gateway) in document["gateways"].as_object_mut().unwrap() {
        let known = gateway["known"].as_array_mut().unwrap();
        let last = known.iter().rfind(|line| !line["counted"].is_null()).unwrap().clone();
        let another = |number| {
            let mut line = last.clone();
            line["challenge"] = format!("{number:064x}").into();
            line
        };
        known.extend((0..count).map(another));
    }
    std::fs::write(path, document.to_string()).unwrap();
}

/// The same without marks, of an agent that has no name to compare the gateway's with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_names_one_challenge_after_another_gets_few_tokens_and_is_reported() {
    let world = World::new().await;
    world.stocked(8).await;
    world.gateway.rename();
    for _ in 0..3 {
        world.connect("target.example:443").await;
    }
    let signed = world.issuer.signed();
    assert!((8 + 4..=8 + 6).contains(&signed), "{signed} were signed");
    let target = echo().await.to_string();
    let World { directory, issuer, gateway, agent } = world;
    agent.stop().await;
    let config = config(&gateway, &issuer, directory.path());
    add_new_challenges(&config.wallet.path, 8);
    let agent = RunningAgent::start(config).await;
    let world = World { directory, issuer, gateway, agent };
    for _ in 0..3 {
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 503);
        for part in ["names another challenge, after", "the issuer's quota", "Ask the gateway's operator"] {
            assert!(answer.body.contains(part), "{}", answer.body);
        }
    }
    assert_eq!(world.issuer.signed(), signed);
    // The challenge that is known is taken again.
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

/// Once there are marks, the agent refuses anything else that could name a client: it mints and sends nothing for it.
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
