#![allow(clippy::unwrap_used, reason = "a test may panic")]
//! Hostile requests, with targets, fields, methods and tokens that the client chose: not one of them may add a time series, for
//! anyone who can add one can add as many as the operator's memory holds. A separate binary, since it compares all metrics of
//! the process.
//!
//! POSTERN_HOSTILE_REQUESTS   how many (1,000,000)

#[allow(dead_code, reason = "the other binary uses the rest")]
mod support;

use postern_token::header::format_authorization;
use postern_token::{ChallengeDigest, encode_base64url};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::thread;
use support::{ISSUER, Running};

/// Without `POSTERN_HOSTILE_REQUESTS`.
const REQUESTS: usize = 1_000_000;
const CLIENTS: usize = 4;
/// Sent on one connection before the answers are read; all of it and all of them fit into the kernel's buffers.
const TOGETHER: usize = 50;

/// Values with good signatures, for challenges of other gateways.
static STRANGE: LazyLock<Vec<String>> = LazyLock::new(|| {
    let other = |number: u8| ISSUER.token_for(ChallengeDigest::of(&[number]));
    (0..20).map(|number| format_authorization(&other(number))).collect()
});

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| (self.next() >> 24) as u8).collect()
    }

    /// Writes a request that is refused, each time for another reason. The last one is a CONNECT, which ends its connection.
    fn request(&mut self, out: &mut String, is_last: bool) {
        let (kind, a, b) = (self.next() % 20, self.next(), self.next());
        let target = format!("h{a:x}.example:{}", b % 65_536);
        let _ = match kind {
            0 if is_last => write!(out, "CONNECT {} HTTP/1.1\r\nHost: {target}\r\n", a % 1000), // no port
            _ if is_last => write!(out, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"),
            1 => write!(out, "GET /{b:x} HTTP/1.1\r\nHost: {target}\r\n"),
            2 => write!(out, "M{a:X} http://{target}/ HTTP/1.1\r\nHost: {target}\r\n"),
            _ => write!(out, "GET http://{target}/{b:x} HTTP/1.1\r\nHost: {target}\r\n"),
        };
        let _ = write!(out, "X-{a:x}: {b}\r\ntraceparent: 00-{a:016x}{b:016x}-{b:016x}-01\r\n");
        let _ = match kind {
            4..=6 => write!(out, "Proxy-Authorization: S{a:x} {b}\r\n"),
            7..=9 => write!(out, "Proxy-Authorization: PrivateToken token={a:x}\r\n"),
            // Right but for the challenge, which the store alone knows.
            17 => write!(out, "Proxy-Authorization: {}\r\n", STRANGE[a as usize % STRANGE.len()]),
            10.. => {
                let value = encode_base64url(&self.token(kind));
                write!(out, "Proxy-Authorization: PrivateToken token=\"{value}\"\r\n")
            }
            _ => Ok(()),
        };
        out.push_str("\r\n");
    }

    /// A token that is right up to some part: type, key, and never the signature.
    fn token(&mut self, kind: u64) -> Vec<u8> {
        let mut token = self.bytes(354);
        if kind >= 12 {
            token[..2].copy_from_slice(&[0, 2]);
        }
        if kind >= 18 {
            token[66..98].copy_from_slice(&ISSUER.key_id().0);
        }
        token
    }
}

/// Sends this number of requests and counts the answers.
fn attack(gateway: SocketAddr, requests: usize, seed: u64) {
    let mut noise = Noise(seed);
    let mut buffer = vec![0; 1 << 18];
    for _ in 0..requests / TOGETHER {
        let mut stream = TcpStream::connect(gateway).unwrap();
        let mut burst = String::new();
        (1..=TOGETHER).for_each(|number| noise.request(&mut burst, number == TOGETHER));
        stream.write_all(burst.as_bytes()).unwrap();
        let (mut answers, mut tail) = (0, Vec::new());
        while answers < TOGETHER {
            let read = stream.read(&mut buffer).unwrap();
            assert!(
                read > 0,
                "the gateway hung up after {answers} answers: {:?}",
                String::from_utf8_lossy(&tail)
            );
            tail.extend_from_slice(&buffer[..read]);
            const REFUSED: &[u8] = b"HTTP/1.1 4";
            answers += tail.windows(REFUSED.len()).filter(|window| *window == REFUSED).count();
            tail.drain(..tail.len() - tail.len().min(REFUSED.len() - 1));
        }
    }
}

/// Every time series, without its value.
fn series(exporter: &postern_telemetry::metrics::Exporter) -> BTreeSet<String> {
    let text = exporter.render();
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_add_no_time_series() {
    let requests = std::env::var("POSTERN_HOSTILE_REQUESTS").map_or(REQUESTS, |text| text.parse().unwrap());
    let exporter = postern_telemetry::metrics::install(&[
        postern_daemon::admin::catalogue::METRICS,
        postern_gateway::catalogue::METRICS,
    ])
    .unwrap();
    let gateway = Running::start_with(|config| {
        // Traced as far as can be: names of spans and counters of traces are under attack, too.
        config.tracing.endpoint = Some("http://127.0.0.1:9".into());
        config.tracing.accept_context = true;
    })
    .await;
    let run = |requests: usize, seed: u64| {
        let address = gateway.address;
        tokio::task::spawn_blocking(move || {
            thread::scope(|scope| {
                for client in 0..CLIENTS as u64 {
                    scope.spawn(move || attack(address, requests / CLIENTS, seed + client + 1));
                }
            });
        })
    };
    run(20_000, 1_000).await.unwrap();
    let before = series(&exporter);
    run(requests, 2_000).await.unwrap();
    let after = series(&exporter);
    assert_eq!(before, after);
    let text = exporter.render();
    let refused = |outcome: &str| {
        let name = format!("postern_requests_total{{outcome=\"{outcome}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name))
            .map_or(0, |value| value.parse::<usize>().unwrap())
    };
    // Every kind of refusal was met, and many times.
    for outcome in
        ["no_token", "other_scheme", "malformed_token", "unknown_key", "bad_signature", "void", "bad_request"]
    {
        assert!(refused(outcome) > requests / 100, "{outcome}: {}", refused(outcome));
    }
    assert!(before.len() < 1_000, "{} time series", before.len());
}
