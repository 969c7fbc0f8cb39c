//! A whole request, by the client's clock: connect, CONNECT with a token, 200, one byte there and back, close.
//! For comparison: the same without the gateway, which is the cost of the sockets alone, and a refusal of a spent token.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

#[allow(dead_code, reason = "shared with the tests, which use the rest")]
#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use support::{ISSUER, Running};

/// A token takes longer to mint than to spend, so the tokens of all rounds are limited.
const SAMPLES: usize = 20;
const MEASURING: Duration = Duration::from_secs(2);

fn request(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let gateway = runtime.block_on(Running::start());
    let target = echo();
    let mut group = criterion.benchmark_group("request");
    group.sample_size(SAMPLES).measurement_time(MEASURING).warm_up_time(Duration::from_millis(200));

    group.bench_function("no gateway: connect, echo a byte, close", |bencher| {
        bencher.iter(|| echo_a_byte(&mut connect(target)));
    });
    group.bench_function("a tunnel for a token, echo a byte, close", |bencher| {
        bencher.iter_custom(|rounds| {
            let requests: Vec<String> =
                (0..rounds).map(|_| connect_request(target, &ISSUER.authorization())).collect();
            let begin = Instant::now();
            for request in &requests {
                let mut stream = connect(gateway.address);
                assert!(ask(&mut stream, request).starts_with(b"HTTP/1.1 200"));
                echo_a_byte(&mut stream);
            }
            begin.elapsed()
        });
    });
    let spent = connect_request(target, &ISSUER.authorization());
    ask(&mut connect(gateway.address), &spent);
    let spent = spent.replacen("CONNECT ", "GET http://", 1).replacen(" HTTP", "/ HTTP", 1); // a refused CONNECT is the last
    group.bench_function("a spent token refused, on a kept connection", |bencher| {
        let mut stream = connect(gateway.address);
        bencher.iter(|| assert!(ask(&mut stream, &spent).starts_with(b"HTTP/1.1 407")));
    });
    group.finish();
    gateway.shutdown.stop();
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn connect_request(target: SocketAddr, authorization: &str) -> String {
    format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: {authorization}\r\n\r\n")
}

/// Sends a request and reads its answer, head and body: both are small and come in one piece.
fn ask(stream: &mut TcpStream, request: &str) -> Vec<u8> {
    stream.write_all(request.as_bytes()).unwrap();
    let mut buffer = [0; 4096];
    let read = stream.read(&mut buffer).unwrap();
    buffer[..read].to_vec()
}

fn echo_a_byte(stream: &mut TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..read]).unwrap();
                }
            });
        }
    });
    address
}

criterion_group!(benches, request);
criterion_main!(benches);
