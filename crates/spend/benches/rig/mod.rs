//! Code shared by the benches of the shared store: a memcached on its own core, the CPU time of a thread or process, keys,
//! and the machine's load.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each bench uses a part of it")]

#[path = "../../tests/support/mod.rs"]
mod support;

pub use support::pipelined;

use hdrhistogram::Histogram;
use postern_spend::Epoch;
use postern_spend::memcached::{self, Client, Memcached, Options, Replicas, Transport};
use postern_token::SpentKey;
use std::cell::Cell;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The connections of a pool: as many as in the story.
pub const POOL: usize = 20;

/// True when started by `cargo bench`. `cargo test --benches` starts benches too, and has no use for a measurement.
pub fn asked_for() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// The arguments behind `--`.
pub fn arguments() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| argument != "--bench").collect()
}

/// Keeps this process on the first core, so that memcached has the second to itself. To be called before there are
/// threads.
pub fn take_first_core() {
    let this = std::process::id().to_string();
    let pinned = Command::new("taskset").args(["-pc", "0", &this]).stdout(Stdio::null()).status();
    let pinned = pinned.is_ok_and(|status| status.success());
    println!("cores: {}", if pinned { "this process 0, memcached 1" } else { "not bound (no taskset)" });
    println!("load before: {}", load());
}

/// The machine's load averages over 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// A memcached of one thread with room for ten million records; killed when it is dropped.
pub struct Server {
    child: Child,
    port: u16,
}

impl Server {
    pub fn start() -> Self {
        let port = postern_testkit::ports::free();
        let listen = ["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0"];
        let room = ["-u", "root", "-t", "1", "-m", "2048", "-M", "-c", "1024"];
        let on_second_core = Command::new("taskset").args(["-c", "1", "true"]).stderr(Stdio::null()).status();
        let mut command = if on_second_core.is_ok_and(|status| status.success()) {
            let mut command = Command::new("taskset");
            command.args(["-c", "1", "memcached"]);
            command
        } else {
            Command::new("memcached")
        };
        let child = command.args(listen).args(room).stdin(Stdio::null()).spawn();
        let server = Self { child: child.expect("memcached is installed (apt-get install memcached)"), port };
        while TcpStream::connect(server.address()).is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
        server
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The CPU time its threads have used.
    pub fn cpu(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.map(|task| on_cpu(task.unwrap().path().join("schedstat"))).sum()
    }

    /// The store in this memcached, with nothing remembered in the process.
    pub fn store(&self, transport: Transport) -> Memcached {
        open(Replicas::One(vec![self.store_address()]), transport)
    }

    fn store_address(&self) -> memcached::Address {
        self.address().to_string().parse().unwrap()
    }
}

/// The store in three of them, of which two decide.
pub fn replicas(servers: &[Server; 3]) -> Memcached {
    open(Replicas::Three(servers.each_ref().map(|server| vec![server.store_address()])), pipelined())
}

fn open(replicas: Replicas, transport: Transport) -> Memcached {
    let interval = Duration::from_secs(5);
    Memcached::open(Options { replicas, interval, ..support::options(Vec::new(), transport) }).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client, ready, and an epoch whose tokens the store admits.
pub async fn begun(store: &Memcached) -> (Client, Epoch) {
    support::begun(store).await
}

/// A pool of [`POOL`] connections.
pub fn pooled() -> Transport {
    support::pooled(POOL)
}

/// The CPU time this thread has used.
pub fn cpu_here() -> Duration {
    on_cpu("/proc/thread-self/schedstat")
}

fn on_cpu(schedstat: impl AsRef<std::path::Path>) -> Duration {
    let text = fs::read_to_string(schedstat).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0))
}

/// The runtime of one of the gateway's cores.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

thread_local! {
    static NEXT_KEY: Cell<u128> = Cell::new(rand::random());
}

/// A key that was not spent before. Counted and not drawn, since drawing 32 bytes would be a part of what is measured.
pub fn next_key() -> SpentKey {
    let number = NEXT_KEY.get();
    NEXT_KEY.set(number.wrapping_add(1));
    let mut bytes = [0x5a; 32];
    bytes[..16].copy_from_slice(&number.to_le_bytes());
    SpentKey::from_bytes(bytes)
}

/// A name for a record in a raw command.
pub fn next_name() -> String {
    let number = NEXT_KEY.get();
    NEXT_KEY.set(number.wrapping_add(1));
    format!("ps1.{number:043x}")
}

/// Latencies from 1 ns to a minute, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap()
}

pub fn record(latencies: &mut Histogram<u64>, since: Instant) {
    latencies.saturating_record(since.elapsed().as_nanos() as u64);
}

/// The middle one, or the higher of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
