//! Latency, throughput and CPU cost of a check: both transports against the minimum possible, with memcached on the
//! second core and all else on the first.
//!
//!     cargo bench --profile release -p postern-spend --bench latency [-- [--rounds=N] [--millis=N] [--callers=N] [NAME...]]
//!
//! NAME takes only the ways whose name contains it; "million" is the long run. `docs/decisions/store-transport.md` has
//! the results.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

#[path = "latency/floor.rs"]
mod floor;
mod rig;

use hdrhistogram::Histogram;
use postern_spend::memcached::{Client, Transport};
use postern_spend::{Epoch, Hint, Spend, SpendStore};
use postern_token::UnixSeconds;
use rig::Server;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The commands of a check.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Check {
    /// The verdict alone: one `add`.
    Spend,
    /// The hint and the verdict: a `get`, then an `add`.
    SeenAndSpend,
}

/// The measurements of one turn.
pub(crate) struct Turn {
    /// Nanoseconds a check.
    pub(crate) latencies: Histogram<u64>,
    /// Checks of each caller.
    pub(crate) each: Vec<u64>,
    pub(crate) wall: Duration,
    /// CPU time of this thread, and of memcached.
    pub(crate) cpu: Duration,
    pub(crate) server_cpu: Duration,
}

type Run = fn(&Server, Check, usize, Duration) -> Turn;

/// The implementations compared.
const WAYS: [(&str, Run); 5] = [
    ("floor, blocking", floor::blocking),
    ("floor, tokio", floor::tokio),
    ("floor, tokio, one get for all", floor::tokio_joined),
    ("pipelined", |server, check, callers, length| ours(rig::pipelined(), server, check, callers, length)),
    ("pooled", |server, check, callers, length| ours(rig::pooled(), server, check, callers, length)),
];
const CALLERS: [usize; 4] = [1, 16, 64, 256];
const WARM_UP: Duration = Duration::from_millis(100);

fn main() {
    if !rig::asked_for() {
        return;
    }
    let arguments = rig::arguments();
    let number = |option: &str, otherwise: u64| {
        arguments.iter().find_map(|argument| argument.strip_prefix(option)?.parse().ok()).unwrap_or(otherwise)
    };
    let (rounds, length) = (number("--rounds=", 5), Duration::from_millis(number("--millis=", 500)));
    let only = number("--callers=", 0) as usize;
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let chosen = |name: &str| names.is_empty() || names.iter().any(|part| name.contains(part.as_str()));
    let ways: Vec<(&str, Run)> = WAYS.into_iter().filter(|(name, _)| chosen(name)).collect();
    rig::take_first_core();
    for (check, title) in [(Check::Spend, "add"), (Check::SeenAndSpend, "get, then add")] {
        let callers = CALLERS.into_iter().filter(|callers| only == 0 || *callers == only);
        let cells = || callers.clone().flat_map(|callers| ways.iter().map(move |way| (callers, way)));
        let mut turns: Vec<Vec<Turn>> = cells().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            let server = Server::start(); // an empty one, so that it need not evict
            for ((callers, (_, run)), turns) in cells().zip(&mut turns) {
                turns.push(run(&server, check, callers, length));
            }
        }
        println!("\n{title}; {rounds} rounds of {} ms: medians, the highest maximum", length.as_millis());
        head();
        cells().zip(&turns).for_each(|((callers, (name, _)), turns)| row(name, callers, turns));
        println!("load: {}", rig::load());
    }
    if chosen("million") {
        million();
    }
}

fn head() {
    println!(
        "| callers | | p50 µs | p99 µs | p99.9 µs | max ms | checks/s | CPU µs/check | checks per CPU second \
         | memcached CPU µs/check | least served caller |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
}

fn row(name: &str, callers: usize, turns: &[Turn]) {
    let median = |figure: &dyn Fn(&Turn) -> f64| rig::median(turns.iter().map(figure).collect());
    let quantile = |at: f64| median(&|turn| turn.latencies.value_at_quantile(at) as f64 / 1_000.0);
    let latest = turns.iter().map(|turn| turn.latencies.max()).max().unwrap() as f64 / 1e6;
    let rate = median(&|turn| turn.latencies.len() as f64 / turn.wall.as_secs_f64());
    let cpu = median(&|turn| turn.cpu.as_secs_f64() * 1e6 / turn.latencies.len() as f64);
    let server_cpu = median(&|turn| turn.server_cpu.as_secs_f64() * 1e6 / turn.latencies.len() as f64);
    let least = median(&|turn| {
        let mean = turn.each.iter().sum::<u64>() as f64 / turn.each.len() as f64;
        *turn.each.iter().min().unwrap() as f64 / mean * 100.0
    });
    println!(
        "| {callers} | {name} | {:.1} | {:.1} | {:.1} | {latest:.2} | {rate:.0} | {cpu:.2} | {:.0} | {server_cpu:.2} \
         | {least:.0} % |",
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        1e6 / cpu
    );
}

/// The checks of one runtime through the store's client.
fn ours(transport: Transport, server: &Server, check: Check, callers: usize, length: Duration) -> Turn {
    let store = server.store(transport);
    rig::runtime().block_on(async {
        let (client, epoch) = rig::begun(&store).await;
        looping(&client, epoch, check, callers, WARM_UP).await;
        measured(server, async || looping(&client, epoch, check, callers, length).await).await
    })
}

/// Runs `checks`, which returns the number each caller has done, and reads the clocks around it.
pub(crate) async fn measured(server: &Server, checks: impl AsyncFnOnce() -> Vec<u64>) -> Turn {
    LATENCIES.with_borrow_mut(Histogram::reset);
    let (wall, cpu, server_cpu) = (Instant::now(), rig::cpu_here(), server.cpu());
    let each = checks().await;
    Turn {
        wall: wall.elapsed(),
        cpu: rig::cpu_here().saturating_sub(cpu),
        server_cpu: server.cpu().saturating_sub(server_cpu),
        latencies: LATENCIES.with_borrow(Histogram::clone),
        each,
    }
}

thread_local! {
    /// One for all callers: one each would not fit into the cache.
    pub(crate) static LATENCIES: RefCell<Histogram<u64>> = RefCell::new(rig::histogram());
}

/// `callers` tasks that check one token after the other.
async fn looping(client: &Client, epoch: Epoch, check: Check, callers: usize, length: Duration) -> Vec<u64> {
    let end = Instant::now() + length;
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let client = client.clone();
        tasks.spawn(async move {
            let (mut done, mut since, now) = (0, Instant::now(), UnixSeconds::now());
            while since < end {
                let key = rig::next_key();
                if check == Check::SeenAndSpend {
                    assert_eq!(client.check(&key, &epoch).await, Ok(Hint::NotFound));
                }
                assert_eq!(client.spend(&key, &epoch, now).await, Ok(Spend::Admitted));
                let finished = Instant::now();
                let took = (finished - since).as_nanos() as u64;
                LATENCIES.with_borrow_mut(|latencies| latencies.saturating_record(took));
                since = finished;
                done += 1;
            }
            done
        });
    }
    tasks.join_all().await
}

/// A run of more than a million checks, to see the slowest.
fn million() {
    const CHECKS: u64 = 1_200_000;
    let server = Server::start();
    let mut all = rig::histogram();
    while all.len() < CHECKS {
        let second = Duration::from_secs(1);
        all.add(ours(rig::pipelined(), &server, Check::SeenAndSpend, 64, second).latencies).unwrap();
    }
    let slower = |millis: u64| all.len() - all.count_between(0, millis * 1_000_000);
    println!(
        "\npipelined, get then add, 64 callers, {} checks: p50 {} µs, p99 {} µs, p99.9 {} µs, p99.99 {} µs",
        all.len(),
        all.value_at_quantile(0.5) / 1_000,
        all.value_at_quantile(0.99) / 1_000,
        all.value_at_quantile(0.999) / 1_000,
        all.value_at_quantile(0.9999) / 1_000
    );
    println!(
        "above 1 ms: {}, above 5 ms: {}, above 10 ms: {}; the slowest {:.2} ms; load {}",
        slower(1),
        slower(5),
        slower(10),
        all.max() as f64 / 1e6,
        rig::load()
    );
}
