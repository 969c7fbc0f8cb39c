//! A fleet of gateways over one store, and tokens presented to it.

use super::checker::{Claim, Summary, Violation, check};
use super::history::{Answer, History, Presentation};
use super::marks::challenge;
use super::minted::Turn;
use super::seed::Seed;
use crate::support::daemon::Daemon;
use crate::support::tokens::present;
use crate::support::udp::{capsule, upgrade};
use crate::support::{association, eventually, proxy, target};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Simultaneous presentations of each token.
pub const PRESENTERS: usize = 8;
/// One presentation of this many asks for UDP.
const UDP_SHARE: usize = 3;
/// Tokens that are raced for at the same time.
const AT_A_TIME: usize = 16;
/// After a race that an outage decided, so that a short outage does not use up all tokens.
const PAUSE: Duration = Duration::from_millis(50);

/// One gateway's way to the store.
#[derive(Clone)]
pub struct Route {
    /// `addresses` or `replicas`, a line.
    servers: String,
    transport: &'static str,
    /// More keys of `[store.memcached]`, a line each.
    more: &'static str,
}

impl Route {
    /// To one replica, at these addresses.
    pub fn to(addresses: &[String], transport: &'static str, more: &'static str) -> Self {
        Self { servers: format!("addresses = {addresses:?}"), transport, more }
    }

    /// To three replicas that vote.
    pub fn voting(replicas: &[String], more: &'static str) -> Self {
        let replicas: Vec<_> = replicas.iter().map(std::slice::from_ref).collect();
        Self { servers: format!("replicas = {replicas:?}"), transport: "pipelined", more }
    }
}

/// Four gateways, two of each transport.
pub fn four(addresses: &[String], more: &'static str) -> Vec<Route> {
    ["pipelined", "pooled", "pipelined", "pooled"]
        .map(|transport| Route::to(addresses, transport, more))
        .into()
}

/// Gateways, ready; a target; a history.
pub struct Fleet {
    pub gateways: Vec<Daemon>,
    pub history: History,
    pub seed: Seed,
    pub home: TempDir,
    tokens: Vec<String>,
    target: SocketAddr,
    udp_target: SocketAddr,
    presented: AtomicUsize,
}

impl Fleet {
    /// Waits until all gateways are ready, and mints this many tokens.
    pub async fn ready(turn: &Turn, home: TempDir, routes: &[Route], tokens: usize) -> Arc<Self> {
        let mut gateways = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            gateways.push(Daemon::ready("gateway", &config(turn, home.path(), index, route)).await);
        }
        let tokens = turn.mint(&gateways[0], tokens);
        let seed = Seed::new();
        println!("seed {}", seed.0);
        Arc::new(Self {
            gateways,
            history: History::create(home.path().join("history.tsv")),
            seed,
            home,
            tokens,
            target: target::echo().await,
            udp_target: association::echo().await,
            presented: AtomicUsize::new(0),
        })
    }

    /// Presents each token [`PRESENTERS`] times at once, each time at a random gateway.
    pub async fn race(self: &Arc<Self>, tokens: Range<usize>) {
        let began = Instant::now();
        let count = tokens.len();
        let mut races = JoinSet::new();
        for token in tokens {
            if races.len() == AT_A_TIME {
                races.join_next().await.unwrap().unwrap();
            }
            races.spawn(Arc::clone(self).race_for(token));
        }
        while let Some(ended) = races.join_next().await {
            ended.unwrap();
        }
        println!("{count} tokens raced for in {:.1?}", began.elapsed());
    }

    async fn race_for(self: Arc<Self>, token: usize) {
        let start = Arc::new(Barrier::new(PRESENTERS));
        let mut presenters = JoinSet::new();
        for presenter in 0..PRESENTERS {
            presenters.spawn(Arc::clone(&self).present(token, presenter, Some(Arc::clone(&start))));
        }
        let mut answers = Vec::new();
        while let Some(ended) = presenters.join_next().await {
            answers.push(ended.unwrap());
        }
        if !answers.contains(&Answer::Opened) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Presents each token once more.
    pub async fn sweep(self: &Arc<Self>, tokens: Range<usize>) {
        let mut sweeping = JoinSet::new();
        for token in tokens {
            if sweeping.len() == AT_A_TIME {
                sweeping.join_next().await.unwrap().unwrap();
            }
            sweeping.spawn(Arc::clone(self).present(token, PRESENTERS, None));
        }
        while let Some(ended) = sweeping.join_next().await {
            ended.unwrap();
        }
    }

    /// One presentation, the `nth` of the token, written to the history.
    async fn present(self: Arc<Self>, token: usize, nth: usize, together: Option<Arc<Barrier>>) -> Answer {
        let gateway = self.seed.draw("gateway", token * (PRESENTERS + 1) + nth, self.gateways.len());
        let start = self.history.now();
        let answer = self.exchange(self.gateways[gateway].address, token, together).await;
        self.history.write(Presentation { token, gateway, start, end: self.history.now(), answer });
        answer
    }

    /// One presentation at a gateway of any fleet, not written to the history.
    pub async fn exchange(
        &self,
        gateway: SocketAddr,
        token: usize,
        together: Option<Arc<Barrier>>,
    ) -> Answer {
        let connected = proxy::dial(gateway).await;
        if let Some(barrier) = together {
            barrier.wait().await;
        }
        let Ok(mut stream) = connected else { return Answer::Broken };
        let (sent, authorization) =
            (format!("token {token} paid for this").into_bytes(), Some(&*self.tokens[token]));
        let presented = self.presented.fetch_add(1, Ordering::Relaxed);
        let (answer, sent) = if self.seed.draw("udp", presented, UDP_SHARE) == 0 {
            (upgrade(&mut stream, self.udp_target, authorization).await, capsule(&sent))
        } else {
            (proxy::connect(&mut stream, &self.target.to_string(), authorization).await, sent)
        };
        match answer {
            Ok(head) if matches!(head.status, 101 | 200) => match proxy::echoes(&mut stream, &sent).await {
                Ok(()) => Answer::Opened,
                Err(_) => Answer::OpenedAndLost,
            },
            Ok(head) if head.says_spent() => Answer::AlreadySpent,
            Ok(head) if head.says_void() => Answer::Void,
            Ok(head) if head.status == 503 => {
                println!("token {token}: {}", head.fields.replace("\r\n", "; ")); // why
                Answer::Unavailable
            }
            Ok(head) => Answer::Other(head.status),
            Err(_) => Answer::Broken,
        }
    }

    /// Returns when every gateway has noticed a loss and serves again: a token of another mark than the one in the challenge
    /// `before` opens a tunnel there.
    pub async fn is_back(&self, turn: &Turn, before: &str) {
        let target = self.target.to_string();
        for gateway in &self.gateways {
            eventually("a token of the next mark opens a tunnel", || async {
                let offered = challenge(gateway).await;
                if offered.is_empty() || offered == before {
                    return None;
                }
                let token = turn.mint(gateway, 1).remove(0);
                (present(gateway.address, &target, &token).await.status == 200).then_some(())
            })
            .await;
        }
    }

    /// Returns the output so far.
    pub fn written(&self) -> String {
        std::fs::read_to_string(self.history.path()).unwrap()
    }

    /// The checker's verdict on the file, which must contain each of `tokens`.
    pub fn judged(&self, tokens: Range<usize>, claim: Claim) -> Result<Summary, Violation> {
        let summary = check(&self.written(), tokens, PRESENTERS, claim)?;
        println!("{summary:?}");
        Ok(summary)
    }

    /// The same of a run that keeps the contract. A file that does not is left for inspection.
    pub fn verdict(&self, tokens: Range<usize>, claim: Claim) -> Summary {
        self.judged(tokens, claim).unwrap_or_else(|violation| {
            let kept = std::env::temp_dir().join(format!("postern-fleet-{}.tsv", self.seed.0));
            std::fs::copy(self.history.path(), &kept).unwrap();
            panic!("seed {}: {violation}\nThe history is {}", self.seed.0, kept.display())
        })
    }
}

/// The configuration of one gateway: two workers, deadlines that a busy machine keeps.
pub fn config(turn: &Turn, home: &Path, index: usize, route: &Route) -> PathBuf {
    let Route { servers, transport, more } = route;
    let keys = home.join("directory.json");
    std::fs::write(&keys, &turn.directory).unwrap();
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nworkers = 2
[issuer]\nkeys = {keys:?}
[challenge]\nissuer_name = \"issuer.example\"\norigin = \"proxy.example\"
[store]\nkind = \"memcached\"
[store.memcached]\n{servers}\ntransport = \"{transport}\"
timeout = \"500ms\"\npool_size = 16
{more}
[egress]\nprivate = true\nports = \"any\"\nudp = \"any\"\n"
    );
    let path = home.join(format!("gateway-{index}.toml"));
    std::fs::write(&path, text).unwrap();
    path
}
