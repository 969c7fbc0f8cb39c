//! An issuer under more load than it can sign: `cargo bench --profile release -p postern-issuer --bench overload`.
//!
//! One signing thread, so that the other core is left for HTTP and the clients. Requests for one token each come at a fixed rate,
//! whatever becomes of those before: half of what the thread can sign, as much, twice and three times as much. Goodput is the
//! tokens a second; a 503 is an answer, too, but no token. Then one account sends three times what can be signed, and another
//! a twentieth.
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]
#![allow(clippy::print_stdout, reason = "its result")]
#![allow(unreachable_pub, reason = "the modules of a benchmark are its own")]

mod http1;

use http1::{Client, directory_of, post};
use postern_daemon::admin::ProcessContext;
use postern_issuer::control::{AccountRequest, DeclaredAccount, KeyHash, ask};
use postern_issuer::{Config, Issuer};
use postern_token::{IssuerKey, REQUEST_MEDIA_TYPE, TokenRequest, TokenType};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

/// Connections of one account: more requests than these never wait.
const CONNECTIONS: u32 = 2_048;
/// Names and API keys.
const ACCOUNTS: [(&str, &str); 2] = [
    ("loud", "a1c36c0ff04ee8ba2ea9ed64f7c3bb9a4f4b3a86d0d7df4bd6f9e1c7f4af5a12"),
    ("quiet", "5e0bd3c51fbd5cb0f1dd1b1a9f0c7e6e2b6f1f3f8c0d4a9967d35be2ab8a4c70"),
];
const SPAN: Duration = Duration::from_secs(5);

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = |name: &str| Builder::new_current_thread().enable_all().thread_name(name).build().unwrap();
    let mut config = Config::loopback(([127, 0, 0, 1], 0).into(), &directory.path().join("keys"));
    config.signing.threads = NonZeroUsize::new(1);
    config.limits.connections = NonZeroUsize::new(2 * CONNECTIONS as usize + 16).unwrap();
    let declared = AccountRequest::Apply { accounts: ACCOUNTS.map(account).into(), prune: false };
    ask(&config, &declared.into(), &mut |_| Ok(())).unwrap();
    let issuing = runtime("issuer");
    let issuer = issuing.block_on(Issuer::bind(config, &ProcessContext::default())).unwrap();
    let address = issuer.local_addr();
    std::thread::spawn(move || issuing.block_on(issuer.run()));
    runtime("asker").block_on(measure(address));
}

async fn measure(address: SocketAddr) {
    let key =
        directory_of(address).await.keys_for(TokenType::BlindRsa2048).next().unwrap().key_bytes().unwrap();
    let key = IssuerKey::from_public_key(TokenType::BlindRsa2048, &key).unwrap();
    let body = TokenRequest::new(key.id(), [1; 256]).serialize();
    let [loud, quiet] = ACCOUNTS.map(|(_, api_key)| {
        post(REQUEST_MEDIA_TYPE, &format!("authorization: Bearer {api_key}\r\n"), &body).into()
    });
    let most = capacity(address, &loud).await;
    println!("one signing thread: {most:.0} tokens a second");
    for times in [0.5, 1.0, 2.0, 3.0] {
        let got = offered(address, &loud, times * most).await;
        println!("{times:>3} times as many requests: {}", got.line(most));
    }
    let both = tokio::join!(offered(address, &loud, 3.0 * most), offered(address, &quiet, most / 20.0));
    println!("  3 times by one account: {}", both.0.line(most));
    println!(" 0.05 times by another account:   {}", both.1.line(most));
}

/// Tokens a second when a few clients each ask for the next when they have the last: the queue is never empty, and never full.
async fn capacity(address: SocketAddr, request: &Arc<[u8]>) -> f64 {
    let mut asking = JoinSet::new();
    let began = Instant::now();
    for _ in 0..8 {
        let (mut client, request) = (Client::to(address).await, Arc::clone(request));
        asking.spawn(async move {
            let mut count = 0_u32;
            while began.elapsed() < SPAN {
                assert_eq!(client.ask(&request).await, 200);
                count += 1;
            }
            count
        });
    }
    let count: u32 = asking.join_all().await.into_iter().sum();
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// The outcomes of requests.
struct Got {
    requests: usize,
    /// The latency of each token, in order.
    tokens: Vec<Duration>,
    took: Duration,
}

/// Sends this many requests a second.
async fn offered(address: SocketAddr, request: &Arc<[u8]>, rate: f64) -> Got {
    let count = (rate * SPAN.as_secs_f64()) as u32;
    let connections = count.min(CONNECTIONS);
    let mut asking = JoinSet::new();
    let clients: Vec<_> = connected(connections, address).await;
    let began = Instant::now();
    for (first, mut client) in (0..count).zip(clients) {
        let request = Arc::clone(request);
        asking.spawn(async move {
            let mut answers = Vec::new();
            for number in (first..count).step_by(connections as usize) {
                // From when it was due: a request that waits for its connection waits.
                let due = began + SPAN.mul_f64(f64::from(number) / f64::from(count));
                sleep_until(due.into()).await;
                let status = client.ask(&request).await;
                assert!(matches!(status, 200 | 503), "{status}");
                answers.push((status, due.elapsed()));
            }
            answers
        });
    }
    let answers = asking.join_all().await.concat();
    let took = began.elapsed();
    let mut tokens: Vec<_> =
        answers.iter().filter(|(status, _)| *status == 200).map(|(_, after)| *after).collect();
    tokens.sort();
    Got { requests: answers.len(), tokens, took }
}

async fn connected(count: u32, address: SocketAddr) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(Client::to(address).await);
    }
    clients
}

impl Got {
    fn line(&self, most: f64) -> String {
        let rate = self.tokens.len() as f64 / self.took.as_secs_f64();
        let after = |part: f64| self.tokens[((self.tokens.len() - 1) as f64 * part) as usize].as_millis();
        format!(
            "{} requests, {} tokens, {rate:.0} a second, {:.2} of the most; half of them within {} ms, 99 of 100 within {} ms",
            self.requests,
            self.tokens.len(),
            rate / most,
            after(0.5),
            after(0.99)
        )
    }
}

fn account((name, key): (&str, &str)) -> DeclaredAccount {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.as_bytes());
    let key_sha256 = Some(KeyHash(hash.as_ref().try_into().unwrap()));
    let quota = "100000000/1d".parse().ok();
    DeclaredAccount { name: name.to_owned(), key_sha256, quota, ..DeclaredAccount::default() }
}
