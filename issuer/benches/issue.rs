//! Tokens issued a second: `cargo bench -p postern-issuer --bench issue`.
//!
//! `sign/1 thread` is the signing pool alone with one thread, so its throughput is that of one core. `http/16` are 16
//! connections that each ask for the next token when they have the last one, on one machine with the issuer.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use postern_issuer::{Config, Issuer};
use postern_service::admin::Readiness;
use postern_service::drain::Shutdown;
use postern_token::{ChallengeDigest, IssuerKey, SigningKey, TokenRequest};
use std::hint::black_box;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const CONNECTIONS: usize = 16;
const ROUNDS: usize = 32;
/// The longest answer is the head of a 200 and 256 bytes.
const BUFFER: usize = 1_024;

fn sign(criterion: &mut Criterion) {
    let key = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let (request, _) = IssuerKey::from_spki(key.spki()).unwrap().request(ChallengeDigest([7; 32])).unwrap();
    let mut group = criterion.benchmark_group("sign");
    group.throughput(Throughput::Elements(1));
    group.bench_function("1 thread", |bencher| bencher.iter(|| key.sign(black_box(&request)).unwrap()));
    group.finish();
}

fn http(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let config = Config::loopback(([127, 0, 0, 1], 0).into(), &directory.path().join("keys"));
    let issuer = runtime.block_on(Issuer::bind(config, Shutdown::new(), &Readiness::new())).unwrap();
    let address = issuer.local_addr();
    runtime.spawn(issuer.run());
    let request = runtime.block_on(whole_request(address));
    let mut streams: Vec<TcpStream> = runtime.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            streams.push(stream);
        }
        streams
    });
    let mut group = criterion.benchmark_group("http");
    group.throughput(Throughput::Elements((CONNECTIONS * ROUNDS) as u64)).sample_size(20);
    group.bench_function("16", |bencher| {
        bencher.iter(|| {
            let asking = std::mem::take(&mut streams).into_iter().map(|stream| {
                let request = request.clone();
                runtime.spawn(ask(stream, request))
            });
            let asking: Vec<_> = asking.collect();
            for asked in asking {
                streams.push(runtime.block_on(asked).unwrap());
            }
        });
    });
    group.finish();
}

/// A request for a token under the key of the issuer at `address`.
async fn whole_request(address: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let get =
        format!("GET {} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", postern_token::DIRECTORY_PATH);
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let directory = postern_token::Directory::parse(&answer[body..]).unwrap();
    let key = IssuerKey::from_spki(&directory.token_keys[0].key_bytes().unwrap()).unwrap();
    let request = TokenRequest::new(key.id(), [1; 256]).serialize();
    let head = "POST /token-request HTTP/1.1\r\nhost: a\r\ncontent-type: application/private-token-request\r\n\
                content-length: 259\r\n\r\n";
    [head.as_bytes(), &request].concat()
}

async fn ask(mut stream: TcpStream, request: Vec<u8>) -> TcpStream {
    let mut answer = [0; BUFFER];
    for _ in 0..ROUNDS {
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
    stream
}

criterion_group!(benches, sign, http);
criterion_main!(benches);
