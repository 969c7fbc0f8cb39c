//! What a token costs the issuer: `cargo bench --profile release -p postern-issuer --bench issue`.
//!
//! It counts CPU time, which other work on the machine changes far less than it changes wall time: of one thread that
//! signs, and of all of an issuer's threads while 16 connections each ask for the next token, or batch, when they have the last.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "its result")]

use postern_admin::ProcessContext;
use postern_issuer::{Config, Issuer};
use postern_token::{
    BatchRequest, ChallengeDigest, DIRECTORY_PATH, Directory, IssuerKey, REQUEST_MEDIA_TYPE, SigningKey,
    TokenRequest, TokenType,
};
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const SIGNATURES: u32 = 2_000;
const CONNECTIONS: u32 = 16;
const ROUNDS: u32 = 250;
/// Tokens in a batch.
const BATCH: u32 = 100;
/// More than the head of a 200 and the answer to a batch.
const BUFFER: usize = 64 * 1_024;

fn main() {
    sign();
    http();
}

fn sign() {
    let key = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let (request, _) =
        IssuerKey::from_spki(key.public_key()).unwrap().request(ChallengeDigest([7; 32])).unwrap();
    let signing = std::thread::Builder::new().name("sign-bench".to_owned());
    let signing = signing.spawn(move || {
        let before = cpu_of("sign-bench");
        for _ in 0..SIGNATURES {
            black_box(key.sign(black_box(&request)).unwrap());
        }
        cpu_of("sign-bench") - before
    });
    report("one signature", signing.unwrap().join().unwrap(), SIGNATURES);
}

/// What one request asks for.
#[derive(Clone, Copy)]
enum Kind {
    One,
    /// A generic batch of type 2.
    Generic,
    /// An amortized batch of type 5.
    Amortized,
}

fn http() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = |name: &str| Builder::new_multi_thread().enable_all().thread_name(name).build().unwrap();
    let (issuing, asking): (Runtime, Runtime) = (runtime("issuer"), runtime("asker"));
    let mut config = Config::loopback(([127, 0, 0, 1], 0).into(), &directory.path().join("keys"));
    config.keys.types = vec![2, 5];
    config.signing.queue = (CONNECTIONS * BATCH) as usize;
    let issuer = issuing.block_on(Issuer::bind(config, &ProcessContext::default())).unwrap();
    let address = issuer.local_addr();
    issuing.spawn(issuer.run());
    let listed = asking.block_on(directory_of(address));
    for (kind, what, of_each, rounds) in [
        (Kind::One, "one token a request", 1, ROUNDS),
        (Kind::Generic, "a token of a generic batch of 100, type 2", BATCH, ROUNDS / 25),
        (Kind::Amortized, "a token of an amortized batch of 100, type 5", BATCH, ROUNDS / 5),
    ] {
        let request = whole_request(&listed, kind);
        asking.block_on(ask(address, request.clone(), 2));
        let used = || (cpu_of("sign-"), cpu_of("issuer"));
        let (before, started) = (used(), Instant::now());
        let clients: Vec<_> =
            (0..CONNECTIONS).map(|_| asking.spawn(ask(address, request.clone(), rounds))).collect();
        clients.into_iter().for_each(|client| asking.block_on(client).unwrap());
        let (after, wall) = (used(), started.elapsed());
        let tokens = CONNECTIONS * rounds * of_each;
        report(&format!("{what}, signing threads"), after.0 - before.0, tokens);
        report(&format!("{what}, the rest of the issuer"), after.1 - before.1, tokens);
        println!(
            "  in wall time, with the clients on the same machine: {:.0}/s",
            f64::from(tokens) / wall.as_secs_f64()
        );
    }
}

fn report(what: &str, cpu: Duration, count: u32) {
    let each = cpu.as_secs_f64() / f64::from(count);
    println!("{what}: {:.1} µs of CPU, {:.0}/s on one core", each * 1e6, 1.0 / each);
}

/// The CPU time of this process's threads whose names begin with `name`.
fn cpu_of(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let of_name = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).unwrap().starts_with(name));
    let nanoseconds = of_name.map(|task| {
        let schedstat = std::fs::read_to_string(task.join("schedstat")).unwrap();
        schedstat.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanoseconds.sum())
}

async fn directory_of(address: SocketAddr) -> Directory {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let get = format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    Directory::parse(&answer[body..]).unwrap()
}

/// A request for tokens under a key of the issuer's.
fn whole_request(listed: &Directory, kind: Kind) -> Vec<u8> {
    let token_type = match kind {
        Kind::One | Kind::Generic => TokenType::BlindRsa2048,
        Kind::Amortized => TokenType::VoprfRistretto255,
    };
    let key = listed.keys_for(token_type).next().unwrap().key_bytes().unwrap();
    let key = IssuerKey::from_public_key(token_type, &key).unwrap();
    let single = || TokenRequest::new(key.id(), [1; 256]);
    let (media_type, body) = match kind {
        Kind::One => (REQUEST_MEDIA_TYPE, single().serialize()),
        Kind::Generic => {
            let batch = BatchRequest::Generic((0..BATCH).map(|_| single()).collect());
            (batch.media_type(), batch.serialize())
        }
        Kind::Amortized => {
            let (batch, _) = key.request_batch(ChallengeDigest([7; 32]), BATCH as usize).unwrap();
            (batch.media_type(), batch.serialize())
        }
    };
    let length = body.len();
    let head = format!(
        "POST /token-request HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), &body].concat()
}

async fn ask(address: SocketAddr, request: Vec<u8>, rounds: u32) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = vec![0; BUFFER];
    for _ in 0..rounds {
        stream.write_all(&request).await.unwrap();
        let mut length = 0;
        let end = loop {
            length += stream.read(&mut answer[length..]).await.unwrap();
            if let Some(end) = answer[..length].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..end]));
        let body = content_length(&answer[..end]);
        stream.read_exact(&mut answer[length..end + body]).await.unwrap();
    }
}

fn content_length(head: &[u8]) -> usize {
    let head = str::from_utf8(head).unwrap().to_ascii_lowercase();
    let value = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    value.unwrap().trim().parse().unwrap()
}
