//! What a token costs the issuer: `cargo bench --profile release -p postern-issuer --bench issue`.
//!
//! It counts CPU time, which other work on the machine changes far less than it changes wall time: of one thread that
//! signs, and of all of an issuer's threads while 16 connections each ask for the next token when they have the last.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "its result")]

use postern_admin::ProcessContext;
use postern_issuer::{Config, Issuer};
use postern_token::{ChallengeDigest, DIRECTORY_PATH, Directory, IssuerKey, SigningKey, TokenRequest};
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const SIGNATURES: u32 = 2_000;
const CONNECTIONS: u32 = 16;
const ROUNDS: u32 = 250;
/// More than the head of a 200 and its 256 bytes.
const BUFFER: usize = 1_024;

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

fn http() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = |name: &str| Builder::new_multi_thread().enable_all().thread_name(name).build().unwrap();
    let (issuing, asking): (Runtime, Runtime) = (runtime("issuer"), runtime("asker"));
    let config = Config::loopback(([127, 0, 0, 1], 0).into(), &directory.path().join("keys"));
    let issuer = issuing.block_on(Issuer::bind(config, &ProcessContext::default())).unwrap();
    let address = issuer.local_addr();
    issuing.spawn(issuer.run());
    let request = asking.block_on(whole_request(address));
    asking.block_on(ask(address, request.clone(), 10));

    let used = || (cpu_of("sign-"), cpu_of("issuer"));
    let (before, started) = (used(), Instant::now());
    let clients: Vec<_> =
        (0..CONNECTIONS).map(|_| asking.spawn(ask(address, request.clone(), ROUNDS))).collect();
    clients.into_iter().for_each(|client| asking.block_on(client).unwrap());
    let (after, wall) = (used(), started.elapsed());
    let tokens = CONNECTIONS * ROUNDS;
    report("one token over HTTP, signing threads", after.0 - before.0, tokens);
    report("one token over HTTP, the rest of the issuer", after.1 - before.1, tokens);
    println!(
        "  in wall time, with the clients on the same machine: {:.0}/s",
        f64::from(tokens) / wall.as_secs_f64()
    );
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

/// A request for a token under the key of the issuer at `address`.
async fn whole_request(address: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let get = format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let directory = Directory::parse(&answer[body..]).unwrap();
    let key = IssuerKey::from_spki(&directory.token_keys[0].key_bytes().unwrap()).unwrap();
    let request = TokenRequest::new(key.id(), [1; 256]).serialize();
    let head = "POST /token-request HTTP/1.1\r\nhost: a\r\ncontent-type: application/private-token-request\r\n\
                content-length: 259\r\n\r\n";
    [head.as_bytes(), &request].concat()
}

async fn ask(address: SocketAddr, request: Vec<u8>, rounds: u32) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = [0; BUFFER];
    for _ in 0..rounds {
        stream.write_all(&request).await.unwrap();
        let mut length = 0;
        let end = loop {
            length += stream.read(&mut answer[length..]).await.unwrap();
            if let Some(end) = answer[..length].windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
        };
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        stream.read_exact(&mut answer[length..end + 256]).await.unwrap();
    }
}
