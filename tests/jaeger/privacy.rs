//! Nothing in Jaeger shows who requested what with which token.

use super::{traced_up, tunnels};
use crate::support::admin::metrics_when;
use crate::support::jaeger::Jaeger;
use crate::support::needles::Needles;
use crate::support::up::{Ports, Up};
use crate::support::{eventually, proxy, target, tokens};
use postern_testkit::ports;
use serde_json::Value;
use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use tempfile::TempDir;

/// The target of tunnels: an address that nothing writes by accident.
const TARGET: Ipv4Addr = Ipv4Addr::new(127, 77, 88, 99);
/// Names under localhost are loopback for every resolver (RFC 6761, section 6.3).
const TARGET_NAME: &str = "secret-target-7f3a.localhost";
/// A name that never has an address (RFC 6761, section 6.4).
const NO_NAME: &str = "secret-nowhere-51c9.invalid";
/// The clients' address.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 66, 55, 44);
/// Requests of each kind.
const ROUNDS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Jaeger: POSTERN_JAEGER names the binary"]
async fn no_trace_shows_who_requested_what() {
    let jaeger = Jaeger::start().await;
    let home = TempDir::new().unwrap();
    let system = traced_up(&home, &jaeger);
    let wallet = home.path().join("wallet");
    metrics_when(system.ports.admin, "the wallet is full", |metrics| metrics.wallet() == 128).await;
    let before = tokens::in_wallet(&wallet);

    let mut needles = Needles::default();
    through_the_agent(&system, &mut needles).await;
    let sent = to_the_gateway(system.ports, &mut needles).await;
    // 2 opened and 2 failed by the agent, 1 opened and 1 replayed at the gateway; the dials that failed come with the
    // rest.
    jaeger
        .traces_when("every tunnel's trace is there", |traces| {
            let replays = traces.iter().filter(|trace| outcome(trace) == Some("already_spent")).count();
            let failed =
                traces.iter().filter(|trace| outcome(trace).is_some_and(|one| one.starts_with("dial_")));
            let ended = tunnels(traces).filter(|trace| trace.find("tunnel").is_some()).count();
            (ended, failed.count(), replays) == (3 * ROUNDS, 2 * ROUNDS, ROUNDS)
        })
        .await;
    let everything = searchable(&jaeger.everything().await);
    system.terminate().assert_stopped();

    let left: HashSet<Vec<u8>> =
        tokens::in_wallet(&wallet).iter().map(|token| token.as_bytes().to_vec()).collect();
    let gone: Vec<_> = before.iter().filter(|token| !left.contains(token.as_bytes())).collect();
    assert_eq!(gone.len(), 4 * ROUNDS, "the agent spent one token on each request");
    for token in gone.iter().copied().chain(&sent) {
        needles.secret("a token's nonce", &token.nonce().0);
        needles.secret("a token's authenticator", token.authenticator());
    }
    needles.address("the target's address", TARGET);
    needles.address("the client's address", CLIENT);
    needles.text("the target's name", "secret-target-7f3a");
    needles.text("the name that has no address", "secret-nowhere-51c9");
    assert_eq!(needles.search(everything.as_bytes()), [""; 0], "{everything}");

    // The search reaches every service: a span of another one, with a needle of each kind, is found.
    let port = ports::closed_at(TARGET).port();
    needles.port("a planted port", port);
    let nonce = hex::encode(gone[0].nonce().0);
    jaeger.plant(&format!("CONNECT {TARGET_NAME}:{port} {TARGET} from {CLIENT} with {nonce}")).await;
    let everything = eventually("the planted span is there", || async {
        let everything = jaeger.everything().await;
        everything.contains("planted").then_some(everything)
    })
    .await;
    let found = needles.search(searchable(&everything).as_bytes());
    for what in [
        "the target's name",
        "the target's address",
        "the client's address",
        "a token's nonce",
        "a planted port",
    ] {
        assert!(found.iter().any(|found| found.starts_with(what)), "{what} is not in {found:?}");
    }
    jaeger.terminate();
}

fn outcome(trace: &super::Trace) -> Option<&str> {
    trace.find("request")?.word("postern.outcome")
}

/// Two tunnels and two that come to nothing, by name and by address, some times. What fails is another target each time: the agent
/// answers about one that has just failed without the gateway.
async fn through_the_agent(system: &Up, needles: &mut Needles) {
    let (far, near) = (target::echo_at(TARGET).await, target::echo().await);
    for address in [far, near] {
        needles.port("a target's port", address.port());
    }
    let named = format!("{TARGET_NAME}:{}", near.port());
    let closed: [SocketAddr; ROUNDS] = std::array::from_fn(|_| ports::closed_at(TARGET));
    for (closed, round) in closed.into_iter().zip(0..) {
        needles.port("a target's port", closed.port());
        for (target, status) in [
            (named.clone(), 200),
            (far.to_string(), 200),
            (closed.to_string(), 502),
            (format!("{NO_NAME}:{}", 443 + round), 502),
        ] {
            let mut stream = proxy::dial_from(CLIENT, system.ports.client).await.unwrap();
            let head = proxy::connect(&mut stream, &target, None).await.unwrap();
            assert_eq!(head.status, status, "{target}: {head:?}");
            if status == 200 {
                proxy::echoes(&mut stream, b"through the agent").await.unwrap();
            }
        }
    }
}

/// From the client to the gateway itself, each token twice; the tokens.
async fn to_the_gateway(ports: Ports, needles: &mut Needles) -> Vec<postern_token::Token> {
    let echo = target::echo_at(TARGET).await;
    needles.port("a target's port", echo.port());
    let (issuer, gateway) = (format!("http://{}", ports.issuer), format!("http://{}", ports.gateway));
    let values = tokens::mint(&issuer, &gateway, ROUNDS);
    for value in &values {
        for status in [200, 407] {
            let mut stream = proxy::dial_from(CLIENT, ports.gateway).await.unwrap();
            let head = proxy::connect(&mut stream, &echo.to_string(), Some(value)).await.unwrap();
            assert_eq!(head.status, status, "{head:?}");
        }
    }
    values.iter().map(|value| tokens::token_of(value)).collect()
}

/// Jaeger's answer, without starts and durations: `"duration":41234` can look like a port.
fn searchable(everything: &str) -> String {
    fn clear(json: &mut Value) {
        match json {
            Value::Object(fields) => {
                for time in ["startTime", "duration"] {
                    fields.get_mut(time).into_iter().for_each(|value| *value = Value::Null);
                }
                fields.values_mut().for_each(clear);
            }
            Value::Array(items) => items.iter_mut().for_each(clear),
            _ => {}
        }
    }
    let answers = serde_json::Deserializer::from_str(everything).into_iter::<Value>();
    let cleared = answers.map(|answer| {
        let mut answer = answer.unwrap();
        clear(&mut answer);
        answer.to_string()
    });
    cleared.collect()
}
