//! Cost of a token for the issuer: `cargo bench --profile release -p postern-issuer --bench issue`.
//!
//! It counts CPU time, which other work on the machine changes far less than it changes wall time: of one thread that
//! signs, and of all of an issuer's threads while 16 connections each ask for the next token, or batch, when they have the last.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "its result")]
#![allow(unreachable_pub, reason = "the modules of a benchmark are its own")]

mod http1;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::Request;
use http::header::CONTENT_TYPE;
use http1::{Client, directory_of, post};
use postern_daemon::admin::ProcessContext;
use postern_issuer::{Config, Issuer};
use postern_token::{
    BatchRequest, ChallengeDigest, Directory, IssuerKey, REQUEST_MEDIA_TYPE, SigningKey, TokenRequest,
    TokenType,
};
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const SIGNATURES: u32 = 2_000;
const CONNECTIONS: u32 = 16;
const ROUNDS: u32 = 250;
/// Tokens in a batch.
const BATCH: u32 = 100;

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

/// The tokens of one request.
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
        let (media_type, body) = body_of(&listed, kind);
        let request = post(media_type, "", &body);
        asking.block_on(ask(address, request.clone(), 2));
        measure(what, CONNECTIONS * rounds * of_each, || {
            let ask = |_| asking.spawn(ask(address, request.clone(), rounds));
            let clients: Vec<_> = (0..CONNECTIONS).map(ask).collect();
            clients.into_iter().for_each(|client| asking.block_on(client).unwrap());
        });
    }
    let (_, body) = body_of(&listed, Kind::One);
    let connection = asking.block_on(connected(address));
    measure("one token a request over HTTP/2, on one connection", CONNECTIONS * ROUNDS, || {
        let ask = |_| asking.spawn(ask_http2(connection.clone(), body.clone().into(), ROUNDS));
        let clients: Vec<_> = (0..CONNECTIONS).map(ask).collect();
        clients.into_iter().for_each(|client| asking.block_on(client).unwrap());
    });
}

/// Reports what the issuer's threads do for `tokens`, which `work` brings them to sign.
fn measure(what: &str, tokens: u32, work: impl FnOnce()) {
    let used = || (cpu_of("sign-"), cpu_of("issuer"));
    let (before, started) = (used(), Instant::now());
    work();
    let (after, wall) = (used(), started.elapsed());
    report(&format!("{what}, signing threads"), after.0 - before.0, tokens);
    report(&format!("{what}, the rest of the issuer"), after.1 - before.1, tokens);
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

/// The media type and body of a request for tokens under a key of the issuer's.
fn body_of(listed: &Directory, kind: Kind) -> (&'static str, Vec<u8>) {
    let token_type = match kind {
        Kind::One | Kind::Generic => TokenType::BlindRsa2048,
        Kind::Amortized => TokenType::VoprfRistretto255,
    };
    let key = listed.keys_for(token_type).next().unwrap().key_bytes().unwrap();
    let key = IssuerKey::from_public_key(token_type, &key).unwrap();
    let single = || TokenRequest::new(key.id(), [1; 256]);
    match kind {
        Kind::One => (REQUEST_MEDIA_TYPE, single().serialize()),
        Kind::Generic => {
            let batch = BatchRequest::Generic((0..BATCH).map(|_| single()).collect());
            (batch.media_type(), batch.serialize())
        }
        Kind::Amortized => {
            let (batch, _) = key.request_batch(ChallengeDigest([7; 32]), BATCH as usize).unwrap();
            (batch.media_type(), batch.serialize())
        }
    }
}

async fn ask(address: SocketAddr, request: Vec<u8>, rounds: u32) {
    let mut client = Client::to(address).await;
    for _ in 0..rounds {
        assert_eq!(client.ask(&request).await, 200);
    }
}

async fn connected(address: SocketAddr) -> SendRequest<Bytes> {
    let (requests, connection) = client::handshake(TcpStream::connect(address).await.unwrap()).await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn ask_http2(connection: SendRequest<Bytes>, body: Bytes, rounds: u32) {
    for _ in 0..rounds {
        let request =
            Request::post("http://127.0.0.1/token-request").header(CONTENT_TYPE, REQUEST_MEDIA_TYPE);
        let mut ready = connection.clone().ready().await.unwrap();
        let (response, mut sending) = ready.send_request(request.body(()).unwrap(), false).unwrap();
        sending.send_data(body.clone(), true).unwrap();
        let mut response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        while let Some(piece) = response.body_mut().data().await {
            let length = piece.unwrap().len();
            response.body_mut().flow_control().release_capacity(length).unwrap();
        }
    }
}
