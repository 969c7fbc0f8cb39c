//! memcacheds that lose everything again and again, as by restarts, under a user of an agent: each time the gateway plants a mark,
//! and the agent takes tokens of it. Prints the tunnels that failed.
//!
//! POSTERN_ROLLS        how often all replicas are restarted, one after another (3)
//! POSTERN_ROLL_PAUSE   seconds between two of them (10)

use super::marks::config_with;
use crate::support::daemon::{Daemon, client_config, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::{eventually, proxy, target};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// The longest time without a tunnel.
const LONGEST: Duration = Duration::from_secs(10);
/// A user's pause between two tunnels through the agent.
const PAUSE: Duration = Duration::from_millis(140);

/// A fleet of one gateway, and an agent with one user.
struct Served {
    _home: TempDir,
    servers: Vec<Memcached>,
    _issuer: Daemon,
    _gateway: Daemon,
    agent: Daemon,
}

impl Served {
    async fn start(replicas: usize) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let servers: Vec<_> = (0..replicas).map(|_| Memcached::start()).collect();
        let addresses: Vec<_> = servers.iter().map(Memcached::address).collect();
        let store = match &addresses[..] {
            [one] => format!("memcached.addresses = [{one:?}]\n"),
            [a, b, c] => format!("memcached.replicas = [[{a:?}], [{b:?}], [{c:?}]]\n"),
            other => panic!("{other:?}"),
        };
        let gateway =
            Daemon::ready("gateway", &config_with(home.path(), "gateway", &issuer, &store, "")).await;
        let agent = client_config(home.path(), &gateway.http(), &issuer.http(), None);
        let agent = Daemon::ready("client", &agent).await;
        Self { _home: home, servers, _issuer: issuer, _gateway: gateway, agent }
    }

    fn empty(&mut self, server: usize) {
        self.servers[server].kill();
        self.servers[server].launch();
    }
}

/// Opens a tunnel after another until it is stopped.
struct User {
    stopped: Arc<AtomicBool>,
    /// Number of tunnels so far.
    served: Arc<AtomicUsize>,
    tunnels: JoinHandle<Vec<(Duration, u16)>>,
}

impl User {
    async fn start(agent: SocketAddr) -> Self {
        let target = target::echo().await.to_string();
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stopped);
        let served = Arc::new(AtomicUsize::default());
        let counted = Arc::clone(&served);
        let tunnels = tokio::spawn(async move {
            let (began, mut tunnels) = (Instant::now(), Vec::new());
            while !is_stopped.load(Ordering::Relaxed) {
                let mut stream = proxy::dial(agent).await.unwrap();
                let status = proxy::connect(&mut stream, &target, None).await.unwrap().status;
                tunnels.push((began.elapsed(), status));
                counted.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
            tunnels
        });
        Self { stopped, served, tunnels }
    }

    /// Waits for some more tunnels.
    async fn served(&self) {
        let before = self.served.load(Ordering::Relaxed);
        let is_served = || async { (self.served.load(Ordering::Relaxed) >= before + 10).then_some(()) };
        eventually("the user is served", is_served).await;
    }

    /// No pause between two tunnels was longer than [`LONGEST`].
    async fn stop(self, what: &str) {
        tokio::time::sleep(LONGEST / 2).await; // so that the last loss has its effect, too
        self.stopped.store(true, Ordering::Relaxed);
        let tunnels = self.tunnels.await.unwrap();
        let served: Vec<_> = tunnels.iter().filter(|(_, status)| *status == 200).map(|(at, _)| *at).collect();
        let gap = served.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        let (failed, all) = (tunnels.len() - served.len(), tunnels.len());
        println!("{what}: {failed} of {all} tunnels failed, the longest time without one was {gap:.1?}");
        assert_eq!(tunnels.last().map(|(_, status)| *status), Some(200), "{what}: {tunnels:?}");
        assert!(gap < LONGEST, "{what}: {tunnels:?}");
    }
}

/// Six losses of one memcached of so many replicas.
async fn is_served_while_one_is_emptied(replicas: usize, server: usize, what: &str) {
    let mut fleet = Served::start(replicas).await;
    let user = User::start(fleet.agent.address).await;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        user.served().await; // or the next loss follows before this one is over, on a busy machine
        fleet.empty(server);
    }
    user.stop(what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_served_again_each_time_that_a_single_store_is_emptied() {
    is_served_while_one_is_emptied(1, 0, "a single memcached, emptied six times").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_served_while_one_of_three_replicas_is_emptied_again_and_again() {
    is_served_while_one_is_emptied(3, 1, "one of three replicas, emptied six times").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_served_while_all_replicas_are_restarted_one_after_another() {
    let number = |name, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse::<u64>().unwrap());
    let (rolls, pause) = (number("POSTERN_ROLLS", 3), number("POSTERN_ROLL_PAUSE", 10));
    let mut fleet = Served::start(3).await;
    let user = User::start(fleet.agent.address).await;
    for _ in 0..rolls {
        for server in 0..3 {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            fleet.empty(server);
        }
    }
    user.stop(&format!("{rolls} rolls, {pause} s apart")).await;
}
