//! Limits of sources that gateways share through their memcached.

use crate::places::client_from;
use crate::shared::shared;
use crate::support::client::{Answer, connect_with};
use crate::support::{PATIENCE, Running, home_with_keys};
use postern_config::Secret;
use postern_daemon::exit;
use postern_gateway::config::{Config, StoreKind};
use postern_testkit::memcached::Server;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const SECRET: &str = "the secret of this fleet";
/// Refusals at once that one gateway allows a source. With one more a second the fleet's limit is 60 more.
const BURST: u32 = 100;

fn limit(config: &mut Config, secret: &str, refusals: u32) {
    config.limits.shared_secret = Some(Secret::new(secret));
    config.limits.source.exempt = Vec::new();
    config.limits.source.refusals = refusals;
    config.limits.source.refusals_burst = BURST * refusals;
}

/// A gateway that refuses at most [`BURST`] requests at once, and one a second.
async fn gateway(server: &Server, secret: &str) -> Running {
    Running::start_with(|config| {
        shared(config, server, |_| {});
        limit(config, secret, 1);
    })
    .await
}

/// One of the same fleet that may refuse much more, so that it is never what limits.
async fn lenient(server: &Server) -> Running {
    Running::start_with(|config| {
        shared(config, server, |_| {});
        limit(config, SECRET, 1_000);
    })
    .await
}

/// A request without a token, from 127.0.0.`last`.
async fn ask(last: u8, gateway: SocketAddr) -> Answer {
    let mut client = client_from(last, gateway).await;
    client.send(connect_with("a.example:443", &[])).await;
    client.answer().await
}

/// Has `first` refuse requests of 127.0.0.`last` until `second`, which has itself refused too few, answers 429 by what `first`
/// shares.
async fn limited_by_the_other(last: u8, first: &Running, second: &Running) -> Answer {
    let began = Instant::now();
    for _ in 0..BURST / 2 {
        for _ in 0..40 {
            let answer = ask(last, first.address).await;
            assert_eq!(answer.status, 407, "{answer:?}");
        }
        let answer = ask(last, second.address).await;
        if answer.status == 429 {
            return answer;
        }
        assert_eq!(answer.status, 407, "{answer:?}");
        sleep(Duration::from_millis(200)).await;
    }
    panic!("still not limited after {:?}", began.elapsed());
}

/// All keys that a memcached has.
fn keys(server: &Server) -> Vec<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"lru_crawler metadump all\r\n").unwrap();
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.ends_with("END\r\n") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    text.split("key=").skip(1).map(|line| line.split(' ').next().unwrap().replace("%3A", ":")).collect()
}

#[tokio::test]
async fn what_one_gateway_refuses_limits_a_source_at_the_others_of_its_fleet() {
    let mut server = Server::tcp(&[]);
    let (first, second) = (lenient(&server).await, gateway(&server, SECRET).await);
    let stranger = gateway(&server, "the secret of another one").await;
    let limited = limited_by_the_other(1, &first, &second).await;
    limited.assert_refused(429, "http_request_denied", "too many requests from this address or network");
    let seconds: u64 = limited.value("retry-after").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(ask(2, second.address).await.status, 407, "another source is not limited");
    for _ in 0..BURST / 4 {
        assert_eq!(ask(1, stranger.address).await.status, 407, "another secret shares nothing");
        sleep(Duration::from_millis(100)).await; // rounds pass
    }
    let keys = keys(&server);
    let counters: Vec<_> = keys.iter().filter_map(|key| key.strip_prefix("postern:rate:")).collect();
    assert!(counters.len() >= 3, "of two sources and of two fleets: {keys:?}");
    for digest in counters {
        assert!(digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    }
    for spelling in ["127.0.0", "7f000001", "fwAAAQ", "\u{7f}", "01000007f", "2130706433", SECRET] {
        assert!(keys.iter().all(|key| !key.contains(spelling)), "{spelling} in {keys:?}");
    }
    // A memory that has forgotten, and whose connections are gone: limits are shared again.
    server.kill();
    for gateway in [&first, &second] {
        gateway.readiness_is(|reasons| reasons.iter().any(|reason| reason.starts_with("store: "))).await;
    }
    server.restart();
    for gateway in [&first, &second] {
        gateway.ready().await;
    }
    limited_by_the_other(3, &first, &second).await;
}

/// The requests are malformed: the store of tokens is down, too, and well-formed ones would get 503.
#[tokio::test]
async fn without_the_memcached_each_gateway_has_its_own_limits() {
    let mut server = Server::tcp(&[]);
    let (first, second) = (lenient(&server).await, gateway(&server, SECRET).await);
    server.kill();
    let malformed = async |gateway: &Running| {
        let mut client = client_from(1, gateway.address).await;
        client.send("nonsense\r\n\r\n").await;
        client.answer().await.status
    };
    let began = Instant::now();
    for _ in 0..BURST {
        for _ in 0..4 {
            assert_eq!(malformed(&first).await, 400);
        }
        assert_eq!(malformed(&second).await, 400, "it refuses as many as without the other");
        sleep(Duration::from_millis(20)).await;
    }
    let own_limit = async { while malformed(&second).await != 429 {} };
    tokio::time::timeout(PATIENCE, own_limit).await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(2), "rounds have passed");
}

#[tokio::test]
async fn a_secret_that_is_short_or_has_nothing_to_share_is_refused_with_a_sentence() {
    for (kind, secret, sentence) in [
        (StoreKind::Memcached, "fifteen letters", "limits.shared_secret is too short"),
        (StoreKind::Embedded, SECRET, "limits.shared_secret needs store.kind = \"memcached\""),
    ] {
        let started = Running::start_in(home_with_keys(), |config| {
            config.store.kind = kind;
            config.store.memcached.addresses = vec!["127.0.0.1:1".into()];
            limit(config, secret, 1);
        });
        let Err(error) = started else { panic!("{sentence}") };
        assert!(error.to_string().starts_with(sentence), "{error}");
        assert!(!error.to_string().contains(secret));
        assert_eq!(error.exit_code(), exit::CONFIG);
    }
}
