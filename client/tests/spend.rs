//! The spend discipline: one token a tunnel, one replacement, nothing sent twice, nothing burnt for nothing.

use crate::support::gateway::{Mood, Step, challenge, digest_in};
use crate::support::*;
use postern_client::Urls;
use postern_config::ConfigDuration;
use postern_token::{TokenChallenge, TokenType, encode_base64url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_costs_one_token_and_reveals_nothing_about_the_client() {
    let world = World::new().await;
    let target = echo().await;
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\nUser-Agent: me\r\nX-Mine: 1\r\n\r\n");
    let mut answer = send(world.agent.address, request.as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    expect_echo(&mut answer.stream).await;
    assert_eq!(world.gateway.tokens().len(), 1);
    let head = world.gateway.heads().pop().unwrap();
    let fields: Vec<_> = head.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(fields.len(), 3, "{head}");
    assert_eq!(fields[..2], [&format!("CONNECT {target} HTTP/1.1"), &format!("Host: {target}")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_spent_or_unanswered_token_is_replaced_once() {
    let world = World::new().await;
    let target = echo().await.to_string();
    for step in [Step::Spent, Step::Bad, Step::Close, Step::Raw(b"HTTP/1.1 200 OK\r\nX: ".to_vec())] {
        world.gateway.then(step);
        let before = world.gateway.tokens().len();
        let mut answer = world.connect(&target).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        expect_echo(&mut answer.stream).await;
        assert_eq!(world.gateway.tokens().len(), before + 2);
    }
    world.gateway.expect_no_token_twice();
}

/// So many 103 that the answer behind them is not read.
fn interim_without_end() -> Vec<u8> {
    [b"HTTP/1.1 103 Hm\r\nA: b\r\n\r\n".repeat(1000), b"HTTP/1.1 403 No\r\n\r\n".to_vec()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_replacement_the_user_hears_what_failed() {
    let world = World::new().await;
    for (steps, status, sentence) in [
        ([Step::Spent, Step::Spent], 502, "refused two tokens"),
        ([Step::Close, Step::Spent], 502, "its message: \"token already spent\""),
        ([Step::Close, Step::Close], 502, "broke the connection off before it answered"),
        ([Step::Spent, Step::Raw(b"SSH-2.0\r\n\r\n".to_vec())], 502, "not HTTP/1.1"),
        ([Step::Spent, Step::Raw(interim_without_end())], 502, "interim answers"),
    ] {
        let before = world.gateway.tokens().len();
        steps.into_iter().for_each(|step| world.gateway.then(step));
        let answer = world.connect("target.example:443").await;
        assert_eq!(answer.status, status);
        assert!(answer.body.contains(sentence), "{}", answer.body);
        assert!(!answer.body.contains("target.example"), "{}", answer.body);
        assert_eq!(world.gateway.tokens().len(), before + 2);
    }
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_other_answer_is_passed_on_and_costs_one_token() {
    let world = World::new().await;
    for status in [400, 403, 431, 500, 502, 504, 508] {
        let fields = "Proxy-Status: gw; error=x\r\nRetry-After: 7\r\nContent-Type: text/plain\r\nX-Inner: 1";
        let raw = format!("HTTP/1.1 {status} Because\r\n{fields}\r\nContent-Length: 3\r\n\r\nwhy");
        world.gateway.then(Step::Raw(raw.into_bytes()));
        let before = world.gateway.tokens().len();
        let answer = world.connect(&format!("target.example:{status}")).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, "why"));
        assert_eq!(field(&answer.head, "proxy-status").as_deref(), Some("gw; error=x"));
        assert_eq!(field(&answer.head, "retry-after").as_deref(), Some("7"));
        assert_eq!(field(&answer.head, "x-inner"), None);
        assert_eq!(world.gateway.tokens().len(), before + 1);
        // The answer is about this target: it is given again without a token, and other targets are reached.
        assert_eq!(world.connect(&format!("target.example:{status}")).await.status, status);
        assert_eq!(world.gateway.tokens().len(), before + 1);
        let reasons = world.agent.process.readiness.reasons();
        assert!(reasons.iter().all(|reason| !reason.contains("answered")), "{reasons:?}");
    }
}

/// A 508 to a probe, which has no target.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_targets_all_lead_in_a_circle_is_away_and_costs_one_token() {
    let world = World::new().await;
    world.stocked(8).await;
    world.gateway.set_mood(Mood::Circling);
    for number in 0..3 {
        let answer = world.connect(&format!("target-{number}.example:443")).await;
        assert!(matches!(answer.status, 503 | 508), "{}", answer.head);
    }
    assert_eq!(world.gateway.tokens().len(), 1);
    let reasons = || world.agent.process.readiness.reasons().join("; ");
    world.until("its readiness says so", || reasons().contains("it answered 508")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_challenge_is_minted_for_on_need_and_the_old_tokens_are_parked() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    let (old, new) = (challenge("proxy.example"), challenge("other.example"));
    world.gateway.ask_for(new.clone());
    assert_eq!(world.connect(&target).await.status, 200);
    let digests: Vec<_> = world.gateway.tokens().iter().map(|token| digest_in(token)).collect();
    assert_eq!(digests, [old.digest(), new.digest()]);
    // Of the old ones seven are left; new ones are not minted ahead before the new challenge has lasted.
    assert_eq!((world.issuer.signed(), world.unspent()), (8 + 1, 7));

    let signed = world.issuer.signed();
    world.gateway.ask_for(old.clone());
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(digest_in(world.gateway.tokens().last().unwrap()), old.digest());
    assert!(world.issuer.signed() <= signed + 8, "parked tokens are used again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_retired_key_do_not_fail_one_tunnel_after_another() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.issuer.rotate(); // the fake gateway takes the newest key only
    for _ in 0..4 {
        let answer = world.connect(&target).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert_eq!(world.gateway.tokens().len(), 5, "one token of the old key is refused, and no more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_merely_spent_condemns_no_other() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    let signed = world.issuer.signed();
    world.issuer.rotate();
    world.gateway.then(Step::Spent);
    world.gateway.then(Step::OpenWith(b""));
    assert_eq!(world.connect(&target).await.status, 200);
    assert_eq!(world.unspent(), 6);
    assert_eq!(world.issuer.signed(), signed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn challenges_that_mean_nothing_to_us_are_passed_over() {
    let world = World::with(|config| config.wallet.high = 4).await;
    let other_type = TokenChallenge::new(TokenType::PartiallyBlindRsa, "issuer.example", None, &[]).unwrap();
    let preamble = format!(
        "Basic realm=\"x, y\", PrivateToken challenge=\"{}\", PrivateToken challenge=\"AAAB\", \
         PrivateToken challenge=\"{}\", Negotiate, ",
        encode_base64url(b"\xff\xfe\x00"),
        encode_base64url(&other_type.serialize()),
    );
    world.gateway.begin_header_with(&format!("Digest realm=\"a\"\r\nProxy-Authenticate: {preamble}"));
    world.gateway.ask_for(challenge("new.example"));
    let answer = world.connect(&echo().await.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_challenge_with_a_context_is_minted_for_on_demand_only() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    let signed = world.issuer.signed();
    for number in 1..=3 {
        let context = [number; 32];
        let fresh =
            TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", Some(context), &["proxy.example"]);
        world.gateway.ask_for(fresh.unwrap());
        assert_eq!(world.connect(&target).await.status, 200);
    }
    // Each tunnel: one try with what there is (or minted in hope), one for the challenge in the refusal.
    assert!(world.issuer.signed() <= signed + 6, "{}", world.issuer.signed() - signed);
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_that_flushes_the_disk_gives_its_tokens_out_once_too() {
    let world = World::with(|config| config.wallet.fsync = true).await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    world.issuer.rotate(); // so that a whole key is dropped as well
    for _ in 0..3 {
        assert_eq!(world.connect(&target).await.status, 200);
    }
    assert_eq!(world.gateway.tokens().len(), 4);
    world.gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_down_costs_no_token() {
    let world = World::new().await;
    world.stocked(8).await;
    let closed = postern_testkit::ports::closed();
    let mut config = world.config();
    let World { directory, issuer: _issuer, agent, .. } = world;
    agent.stop().await;
    config.gateway.url = Urls::One(format!("http://{closed}"));
    let agent = RunningAgent::start(config).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 502);
    assert!(
        answer.body.contains(&format!("the gateway http://{closed} cannot be reached")),
        "{}",
        answer.body
    );
    assert_eq!(unspent(&directory.path().join("wallet")), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_does_not_answer_is_given_up() {
    let silent = serve(|stream| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let world = World::new().await;
    world.stocked(8).await;
    // The challenge of a silent gateway is never learnt, so a stocked wallet is put behind it: same URL, new server.
    let mut config = world.config();
    config.gateway.url = Urls::One(format!("http://{silent}"));
    config.gateway.answer_timeout = ConfigDuration::millis(50);
    let World { directory: _directory, agent, .. } = world;
    agent.stop().await;
    let agent = RunningAgent::start(config).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 502, "without a challenge there is nothing to send: {}", answer.body);
    assert!(answer.body.contains("did not answer within"), "{}", answer.body);
}
