//! Stopping with tunnels open: what is waited for is said, and a second Ctrl-C ends it at once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::daemon::{Daemon, gateway_config, issuer_config};
use support::process::Postern;
use support::up::Up;
use support::{proxy, target, tokens};
use tempfile::TempDir;
use tokio::io::BufReader;
use tokio::net::TcpStream;

/// "At once", on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(2);
/// A person who pressed Ctrl-C waits no longer for a word.
const SOON: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_in_up_says_what_is_waited_for_and_a_second_one_ends_it() {
    let home = TempDir::new().unwrap();
    let system = Up::start(home.path());
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        tunnels.push(open_tunnel(system.ports.client, None).await);
    }
    system.process.signal("INT");
    says_soon(&system.process, &["3", "tunnel"]).await;
    ends_at_once(system.process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_of_a_gateway_says_what_is_waited_for_and_a_second_one_ends_it() {
    let fleet = Fleet::ready("30s").await;
    let token = tokens::mint(&fleet.issuer.http(), &fleet.gateway.http(), 1).remove(0);
    let _tunnel = open_tunnel(fleet.gateway.address, Some(&token)).await;
    fleet.gateway.process.signal("TERM");
    says_soon(&fleet.gateway.process, &["1", "tunnel"]).await;
    ends_at_once(fleet.gateway.process);
}

/// An issuer and a gateway.
struct Fleet {
    issuer: Daemon,
    gateway: Daemon,
    _home: TempDir,
}

impl Fleet {
    async fn ready(deadline: &str) -> Self {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let drain = format!("[drain]\ndeadline = \"{deadline}\"\n");
        let config = gateway_config(home.path(), &issuer.http(), "", "1s", &drain);
        let gateway = Daemon::ready("gateway", &config).await;
        Self { issuer, gateway, _home: home }
    }
}

/// A tunnel that has carried bytes.
async fn open_tunnel(proxy: SocketAddr, token: Option<&str>) -> BufReader<TcpStream> {
    let echo = target::echo().await.to_string();
    let mut stream = proxy::dial(proxy).await.unwrap();
    assert_eq!(proxy::connect(&mut stream, &echo, token).await.unwrap().status, 200);
    proxy::echoes(&mut stream, b"before").await.unwrap();
    stream
}

/// Waits for a line on stderr with all of `words`, for as long as a person waits.
async fn says_soon(process: &Postern, words: &[&str]) {
    let began = Instant::now();
    loop {
        let (_, stderr) = process.written();
        if let Some(line) = stderr.lines().find(|line| words.iter().all(|word| line.contains(word))) {
            println!("{line}");
            return;
        }
        assert!(began.elapsed() < SOON, "no line with {words:?} within {SOON:?}, but {stderr:?}");
        tokio::time::sleep(support::TICK).await;
    }
}

fn ends_at_once(process: Postern) {
    let asked = Instant::now();
    process.signal("INT");
    process.ended().assert_stopped();
    assert!(asked.elapsed() < AT_ONCE, "it ended {:?} after the second signal", asked.elapsed());
}
