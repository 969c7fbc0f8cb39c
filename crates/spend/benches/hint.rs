//! Measures whether the `get` before the cryptography is worth its round trip, and whether it should overlap the
//! verification. One runtime, the pipelined transport, the real verification of a real token.
//!
//!     cargo bench --profile release -p postern-spend --bench hint [-- [--rounds=N] [--millis=N]]
//!
//! `docs/decisions/store-transport.md` has the results.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

mod rig;

use hdrhistogram::Histogram;
use postern_spend::memcached::Client;
use postern_spend::{Epoch, Hint, Spend, SpendStore, Unknown};
use postern_token::{
    IssuerKey, SigningKey, SpentKey, Token, TokenChallenge, TokenType, UnixSeconds, VerifyingKey,
};
use rig::Server;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A way through the stages of a check.
#[derive(Clone, Copy)]
enum Order {
    /// `get`, then verify, then `add`.
    First,
    /// Send the `get`, verify, then look at its reply, then `add`.
    Beside,
    /// Verify, then `add`.
    Without,
}

/// The tokens presented.
#[derive(Clone, Copy)]
enum Tokens {
    Fresh,
    /// Spent before, and not remembered by the process.
    Replayed,
}

/// The number of replicas that decide.
#[derive(Clone, Copy, PartialEq)]
enum Replicas {
    One,
    Three,
}

const CASES: [(&str, Order, Tokens, Replicas); 7] = [
    ("get, verify, add", Order::First, Tokens::Fresh, Replicas::One),
    ("get beside verify, add", Order::Beside, Tokens::Fresh, Replicas::One),
    ("verify, add", Order::Without, Tokens::Fresh, Replicas::One),
    ("get beside verify, add, three replicas", Order::Beside, Tokens::Fresh, Replicas::Three),
    ("verify, add, three replicas", Order::Without, Tokens::Fresh, Replicas::Three),
    ("replay: get finds it", Order::First, Tokens::Replayed, Replicas::One),
    ("replay: verify, add finds it", Order::Without, Tokens::Replayed, Replicas::One),
];
const CALLERS: [usize; 3] = [1, 16, 64];
const WARM_UP: Duration = Duration::from_millis(100);

/// A caller's shared state.
struct Gateway {
    client: Client,
    epoch: Epoch,
    now: UnixSeconds,
    token: Token,
    key: VerifyingKey,
}

struct Turn {
    latencies: Histogram<u64>,
    wall: Duration,
    cpu: Duration,
    /// memcached's.
    server: Duration,
}

fn main() {
    if !rig::asked_for() {
        return;
    }
    let arguments = rig::arguments();
    let number = |option: &str, otherwise: u64| {
        arguments.iter().find_map(|argument| argument.strip_prefix(option)?.parse().ok()).unwrap_or(otherwise)
    };
    let (rounds, length) = (number("--rounds=", 7), Duration::from_millis(number("--millis=", 500)));
    rig::take_first_core();
    let cells = || CALLERS.into_iter().flat_map(|callers| CASES.into_iter().map(move |case| (callers, case)));
    let mut turns: Vec<Vec<Turn>> = cells().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        let servers = [(); 3].map(|()| Server::start());
        for ((callers, (_, order, tokens, replicas)), turns) in cells().zip(&mut turns) {
            turns.push(turn(&servers, callers, (order, tokens, replicas), length));
        }
    }
    println!("\n{rounds} rounds of {} ms: medians", length.as_millis());
    println!("| callers | | p50 µs | p99 µs | checks/s | CPU µs/check | memcached's |");
    println!("|---|---|---|---|---|---|---|");
    for ((callers, (name, ..)), turns) in cells().zip(&turns) {
        let median = |figure: &dyn Fn(&Turn) -> f64| rig::median(turns.iter().map(figure).collect());
        println!(
            "| {callers} | {name} | {:.1} | {:.1} | {:.0} | {:.1} | {:.1} |",
            median(&|turn| turn.latencies.value_at_quantile(0.5) as f64 / 1_000.0),
            median(&|turn| turn.latencies.value_at_quantile(0.99) as f64 / 1_000.0),
            median(&|turn| turn.latencies.len() as f64 / turn.wall.as_secs_f64()),
            median(&|turn| turn.cpu.as_secs_f64() * 1e6 / turn.latencies.len() as f64),
            median(&|turn| turn.server.as_secs_f64() * 1e6 / turn.latencies.len() as f64),
        );
    }
    println!("load after: {}", rig::load());
}

thread_local! {
    static LATENCIES: RefCell<Histogram<u64>> = RefCell::new(rig::histogram());
}

fn turn(
    servers: &[Server; 3],
    callers: usize,
    (order, tokens, replicas): (Order, Tokens, Replicas),
    length: Duration,
) -> Turn {
    let store = match replicas {
        Replicas::Three => rig::replicas(servers),
        Replicas::One => servers[0].store(rig::pipelined()),
    };
    let servers_cpu = || -> Duration { servers.iter().map(Server::cpu).sum() };
    rig::runtime().block_on(async {
        let (token, key) = token();
        let ((client, epoch), now) = (rig::begun(&store).await, UnixSeconds::now());
        let gateway = Arc::new(Gateway { client, epoch, now, token, key });
        looping(&gateway, callers, order, tokens, WARM_UP).await;
        LATENCIES.with_borrow_mut(Histogram::reset);
        let (wall, cpu, server_cpu) = (Instant::now(), rig::cpu_here(), servers_cpu());
        looping(&gateway, callers, order, tokens, length).await;
        let (wall, cpu) = (wall.elapsed(), rig::cpu_here().saturating_sub(cpu));
        let server = servers_cpu().saturating_sub(server_cpu);
        Turn { latencies: LATENCIES.with_borrow(Histogram::clone), wall, cpu, server }
    })
}

/// One real token, verified again and again; the store sees another key each time.
fn token() -> (Token, VerifyingKey) {
    let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let issuer = IssuerKey::from_spki(signing.public_key()).unwrap();
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example"]);
    let (request, pending) = issuer.request(challenge.unwrap().digest()).unwrap();
    let token = pending.finalize(&signing.sign(&request).unwrap()).unwrap();
    (token, VerifyingKey::from_spki(signing.public_key()).unwrap())
}

async fn looping(gateway: &Arc<Gateway>, callers: usize, order: Order, tokens: Tokens, length: Duration) {
    let end = Instant::now() + length;
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let gateway = Arc::clone(gateway);
        tasks.spawn(async move {
            let spent = rig::next_key();
            if matches!(tokens, Tokens::Replayed) {
                assert_eq!(gateway.spend(&spent).await, Ok(Spend::Admitted));
            }
            let mut since = Instant::now();
            while since < end {
                let verdict = match tokens {
                    Tokens::Fresh => gateway.check(&rig::next_key(), order).await,
                    Tokens::Replayed => gateway.check(&spent, order).await,
                };
                let expected = match tokens {
                    Tokens::Fresh => Spend::Admitted,
                    Tokens::Replayed => Spend::AlreadySpent,
                };
                assert_eq!(verdict, Ok(expected));
                let finished = Instant::now();
                let took = (finished - since).as_nanos() as u64;
                LATENCIES.with_borrow_mut(|latencies| latencies.saturating_record(took));
                since = finished;
            }
        });
    }
    tasks.join_all().await;
}

impl Gateway {
    async fn check(&self, key: &SpentKey, order: Order) -> Result<Spend, Unknown> {
        match order {
            Order::First => {
                if self.client.check(key, &self.epoch).await? == Hint::Spent {
                    return Ok(Spend::AlreadySpent);
                }
                self.key.verify(&self.token).unwrap();
            }
            Order::Beside => {
                let mut asking = pin!(self.client.check(key, &self.epoch));
                // Into the queue, then give the connection's task its turn to send it.
                let begun = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
                tokio::task::yield_now().await;
                self.key.verify(&self.token).unwrap();
                let seen = match begun {
                    Poll::Ready(seen) => seen?,
                    Poll::Pending => asking.await?,
                };
                if seen == Hint::Spent {
                    return Ok(Spend::AlreadySpent);
                }
            }
            Order::Without => self.key.verify(&self.token).unwrap(),
        }
        self.spend(key).await
    }

    async fn spend(&self, key: &SpentKey) -> Result<Spend, Unknown> {
        self.client.spend(key, &self.epoch, self.now).await
    }
}
