//! Minting: what the library gives, and what an agent makes of an issuer that is slow, unwilling or away.

use crate::support::gateway::{Gateway, challenge};
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::fetch_challenge;
use postern_client::mint::{IssuerClient, MintError};
use postern_config::{ConfigDuration, Secret};
use postern_token::header::Challenge;
use postern_token::{Token, UnixSeconds, VerifyingKey};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_minted_for_the_challenge_of_a_gateway() {
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let offered = fetch_challenge(&gateway.url(), None).await.unwrap();
    assert_eq!(offered.bytes, challenge("proxy.example").serialize());
    let client = IssuerClient::new(&issuer.url(), Some(Secret::new("k-1")), None).unwrap();
    let key = client.key_for(&offered).await.unwrap();
    let mut tokens: Vec<Token> = Vec::new();
    let keep = |token| {
        tokens.push(token);
        ControlFlow::Continue(())
    };
    assert_eq!(client.mint(&offered.bytes, &key, 20, 0, keep).await.unwrap(), 20);
    let verifying = VerifyingKey::from_spki(issuer.key().public_key()).unwrap();
    for token in &tokens {
        verifying.verify(token).unwrap();
        assert_eq!(token.challenge_digest(), challenge("proxy.example").digest());
    }
    assert_eq!(tokens.len(), 20);
    assert!(issuer.api_keys.lock().iter().all(|value| value == "Bearer k-1"));

    // Breaking off keeps what the issuer has counted.
    let mut kept = 0;
    let first_only = |_| {
        kept += 1;
        ControlFlow::Break(())
    };
    let before = issuer.signed();
    let minted = client.mint(&offered.bytes, &key, 1_000, 0, first_only).await.unwrap();
    assert_eq!((minted, kept), (issuer.signed() - before, issuer.signed() - before));
    assert_eq!(minted, 100, "one request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_the_challenge_is_preferred_to_that_of_the_directory() {
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let old = fetch_challenge(&gateway.url(), None).await.unwrap();
    issuer.rotate();
    let client = IssuerClient::new(&issuer.url(), None, None).unwrap();
    assert_eq!(client.key_for(&old).await.unwrap().key.public_key(), old.token_key.clone().unwrap());
    gateway.name_no_key();
    let unnamed = fetch_challenge(&gateway.url(), None).await.unwrap();
    assert_eq!(unnamed.token_key, None);
    assert_eq!(client.key_for(&unnamed).await.unwrap().key.public_key(), issuer.key().public_key());

    // A key that only some clients see would identify them: the directory has the keys that all clients see.
    let mut foreign = old.clone();
    foreign.token_key = Some(crate::support::issuer::key().public_key().to_vec());
    let error = client.key_for(&foreign).await.unwrap_err();
    assert!(matches!(error, MintError::Unlisted { .. }), "{error}");
    assert!(error.to_string().contains(&format!("{}/.well-known/", issuer.url())), "{error}");
}

/// A gateway that sends the challenge of another one could spend the tokens there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_challenge_that_names_another_gateway_is_not_answered() {
    let world = World::with(|config| config.gateway.origin = Some("other.example".to_owned())).await;
    let target = echo().await.to_string();
    let answer = world.connect(&target).await;
    assert_eq!(answer.status, 502, "{}", answer.body);
    assert!(
        answer.body.contains("it is for \"proxy.example\", and the gateway is \"other.example\""),
        "{}",
        answer.body
    );
    assert_eq!((world.issuer.signed(), world.gateway.tokens().len()), (0, 0));

    let world = World::with(|config| config.gateway.origin = Some("Proxy.Example".to_owned())).await;
    assert_eq!(world.connect(&target).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_the_url_the_status_and_the_issuers_own_text() {
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let offered = fetch_challenge(&gateway.url(), None).await.unwrap();
    let client = IssuerClient::new(&issuer.url(), None, None).unwrap();
    let key = client.key_for(&offered).await.unwrap();
    issuer.refuse(401, None, "no such\r\naccount", usize::MAX);
    let error = client.mint(&offered.bytes, &key, 3, 0, |_| ControlFlow::Continue(())).await.unwrap_err();
    let url = format!("{}/token-request", issuer.url());
    let sentence = format!(
        "the issuer {url} answered 401 Unauthorized: \"no such account\"; check the account's key \
         (issuer.api_key or issuer.api_key_file, --api-key or POSTERN_ISSUER_API_KEY)"
    );
    assert_eq!(error.to_string(), sentence);
    assert!(error.is_lasting());

    for bad in
        ["issuer.example", "ftp://issuer.example", "http://user@issuer.example", "https://issuer.example/?a"]
    {
        assert!(matches!(IssuerClient::new(bad, None, None), Err(MintError::Url(_))), "{bad}");
    }
    for name in ["issuer.example/path", "user@issuer.example", "issuer.example?x", ""] {
        assert!(IssuerClient::named(name, None).is_err(), "{name}");
    }
    for bad in ["gateway.example", "http://gateway.example/path", "ftp://gateway.example"] {
        assert!(fetch_challenge(bad, None).await.unwrap_err().to_string().contains(bad), "{bad}");
    }
    let web_server = serve(|mut stream| async move {
        let mut buffer = [0; 1000];
        let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await;
        let answer = b"HTTP/1.1 405 No\r\nContent-Length: 4\r\n\r\nnope";
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
    })
    .await;
    let error = fetch_challenge(&format!("http://{web_server}"), None).await.unwrap_err().to_string();
    let what = "it answered 405 Method Not Allowed: \"nope\" where 407 is expected; is this the address of a gateway";
    assert!(error.contains(what), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_minted_ahead_between_low_and_high_water() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    assert_eq!(world.issuer.signed(), 8);
    for left in [7, 6, 5, 4] {
        assert_eq!(world.connect(&target).await.status, 200);
        assert_eq!(world.unspent(), left);
    }
    assert_eq!(world.issuer.signed(), 8, "nothing is minted above low water");
    assert_eq!(world.connect(&target).await.status, 200);
    world.stocked(8).await;
    assert_eq!(world.issuer.signed(), 13);
    assert_eq!(world.agent.process.readiness.reasons(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_share_one_refill() {
    let issuer = Issuer::start().await;
    let paused = issuer.pause.lock().await;
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let target = echo().await.to_string();
    until("the challenge was requested", || !gateway.heads().is_empty()).await;
    let before = gateway.dials();
    let requests: Vec<_> = (0..30)
        .map(|_| {
            let (address, target) = (agent.address, target.clone());
            tokio::spawn(async move { connect(address, &target).await.status })
        })
        .collect();
    until("each has dialled, and waits for a token", || gateway.dials() >= before + 30).await;
    drop(paused);
    for request in requests {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert!(issuer.directories.load(Ordering::SeqCst) <= 6, "{:?}", issuer.directories);
    assert!(issuer.signed() <= 30 + 2 * 8 + 8, "{}", issuer.signed());
    assert_eq!(gateway.tokens().len(), 30);
    gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_hangs_up_before_its_tunnel_opens_costs_no_token() {
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (0, 1)).await;
    let target = echo().await;
    let paused = world.issuer.pause.lock().await;
    let connects = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into_bytes();
    let port = target.port().to_be_bytes();
    let socks = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port].concat();
    let udp = b"GET /.well-known/masque/udp/127.0.0.1/53/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\
                Upgrade: connect-udp\r\n\r\n"
        .to_vec();
    for request in [&connects, &socks, &udp, &connects, &socks, &udp] {
        let mut program = TcpStream::connect(world.agent.address).await.unwrap();
        program.write_all(request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await; // it waits for its token
    }
    drop(paused);
    assert_eq!(world.connect(&target.to_string()).await.status, 200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.gateway.tokens().len(), 1);
}

/// Otherwise, anyone who may write a directory could obtain the API key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_key_goes_to_the_issuer_and_nowhere_else() {
    let (issuer, other) = (Issuer::start().await, Issuer::start().await);
    *issuer.request_uri.lock() = format!("{}/token-request", other.url());
    other.keys.lock().clone_from(&issuer.keys.lock());
    let gateway = Gateway::start(&issuer).await;
    let offered = fetch_challenge(&gateway.url(), None).await.unwrap();
    for (api_key, expected) in [(Some(Secret::new("k-1")), Err(true)), (None, Ok(1))] {
        let client = IssuerClient::new(&issuer.url(), api_key, None).unwrap();
        let key = client.key_for(&offered).await.unwrap();
        let minted = client.mint(&offered.bytes, &key, 1, 0, |_| ControlFlow::Continue(())).await;
        let said = |error: MintError| {
            let said = error.to_string();
            assert!(said.contains("and the API key is for the issuer alone"), "{said}");
            error.is_lasting()
        };
        assert_eq!(minted.map_err(said), expected);
    }
    assert!(other.api_keys.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unwilling_issuer_is_quoted_to_the_user() {
    let issuer = Issuer::start().await;
    issuer.refuse(401, None, "account closed", usize::MAX);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let began = Instant::now();
    let answer = connect(agent.address, "target.example:443").await;
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "nothing changes within the ten seconds, so why wait them out"
    );
    assert_eq!(answer.status, 503);
    let expected = "answered 401 Unauthorized: \"account closed\"; check the account's key \
                    (issuer.api_key or issuer.api_key_file, --api-key or POSTERN_ISSUER_API_KEY)";
    assert!(answer.body.contains(expected), "{}", answer.body);
    assert!(field(&answer.head, "retry-after").unwrap().parse::<u64>().unwrap() >= 9);
    assert!(
        agent.process.readiness.reasons()[0].contains("account closed"),
        "{:?}",
        agent.process.readiness.reasons()
    );
    assert!(gateway.tokens().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_honoured_and_handed_on() {
    let issuer = Issuer::start().await;
    issuer.refuse(429, Some(200), "quota spent", usize::MAX);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let answer = connect(agent.address, "target.example:443").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("quota spent") && answer.body.contains("429"), "{}", answer.body);
    let seconds: u64 = field(&answer.head, "retry-after").unwrap().parse().unwrap();
    assert!((199..=242).contains(&seconds), "{seconds}");
    let asked = issuer.directories.load(Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(connect(agent.address, "target.example:443").await.status, 503);
    }
    assert_eq!(issuer.directories.load(Ordering::SeqCst), asked, "the issuer is left alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_outlasts_an_issuer_that_is_busy_for_a_moment() {
    let issuer = Issuer::start().await;
    issuer.refuse(503, Some(1), "signing pool full", 3);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let agent = RunningAgent::start(config(&gateway, &issuer, directory.path())).await;
    let mut answer = connect(agent.address, &echo().await.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    expect_echo(&mut answer.stream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stocked_wallet_works_without_issuer_and_from_the_first_second() {
    let world = World::new().await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    let mut config = world.config();
    let World { directory: _directory, gateway, agent, issuer: _issuer } = world;
    let challenge_file = config.wallet.path.with_extension("challenge");
    tokio::time::timeout(HANG, async {
        while !challenge_file.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .unwrap();
    agent.stop().await;
    config.issuer.url = Some("http://127.0.0.1:1".to_owned().into());
    config.wallet.low = 8;
    let agent = RunningAgent::start(config).await;
    for _ in 0..8 {
        assert_eq!(connect(agent.address, &target).await.status, 200);
    }
    let answer = connect(agent.address, &target).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("the issuer http://127.0.0.1:1/"), "{}", answer.body);
    assert!(answer.body.contains("cannot be reached"), "{}", answer.body);
    gateway.expect_no_token_twice();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_key_past_its_time_are_not_sent() {
    let issuer = Issuer::start().await;
    let retires = UnixSeconds(UnixSeconds::now().0 + 6);
    issuer.retire_at(retires);
    let gateway = Gateway::start(&issuer).await;
    let directory = tempfile::tempdir().unwrap();
    let config = config(&gateway, &issuer, directory.path());
    let agent = RunningAgent::start(config.clone()).await;
    let target = echo().await.to_string();
    assert_eq!(connect(agent.address, &target).await.status, 200);
    agent.stop().await;
    // The clock is what this waits for: the key's last second has to pass.
    tokio::time::sleep(UnixSeconds::now().until(retires)).await;
    let agent = RunningAgent::start(config.clone()).await;
    let answer = connect(agent.address, &target).await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("the key to use is retired"), "{}", answer.body);
    assert_eq!(gateway.tokens().len(), 1);
    assert_eq!(unspent(&config.wallet.path), 0, "spoiled tokens are dropped");
}

/// Otherwise a gateway could have its clients knock at the services of their machine and of their network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_only_a_challenge_names_is_reached_at_public_addresses_alone() {
    let knocked = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&knocked);
    let service = serve(move |_stream| {
        counting.fetch_add(1, Ordering::SeqCst);
        std::future::ready(())
    })
    .await;
    let port = service.port();
    let challenge = Challenge { bytes: Vec::new(), token_key: None, max_age: None };
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "0.0.0.0"] {
        let issuer = IssuerClient::named(&format!("{host}:{port}"), None).unwrap();
        let error = issuer.key_for(&challenge).await.unwrap_err();
        assert!(matches!(error, MintError::NotPublic { .. }), "{host}: {error}");
        assert!(error.to_string().contains("set issuer.url"), "{error}");
    }
    assert_eq!(knocked.load(Ordering::SeqCst), 0);
    // The operator may name any address.
    let chosen = IssuerClient::new(&format!("http://localhost:{port}"), None, None).unwrap();
    assert!(matches!(chosen.key_for(&challenge).await, Err(MintError::Unreachable { .. })));
    assert!(knocked.load(Ordering::SeqCst) > 0);
}

/// The gateway may see when a token was used; the issuer may not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wallet_that_has_enough_is_filled_at_some_moment_and_one_that_has_little_at_once() {
    let world = World::with(|config| config.wallet.delay = ConfigDuration::hours(1_000)).await;
    let target = echo().await.to_string();
    world.stocked(8).await;
    for _ in 0..6 {
        assert_eq!(world.connect(&target).await.status, 200);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((world.unspent(), world.issuer.signed()), (2, 8));
    assert_eq!(world.connect(&target).await.status, 200);
    world.stocked(8).await;

    let world = World::with(|config| config.wallet.delay = ConfigDuration::millis(300)).await;
    world.stocked(8).await;
    for _ in 0..5 {
        assert_eq!(world.connect(&target).await.status, 200);
    }
    world.stocked(8).await;
}
