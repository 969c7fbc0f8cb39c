//! The memory of a gateway under floods of datagrams, whose reader is slow or not there.

use crate::support::association::echo;
use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::http2::{Connection, Tunnel};
use crate::support::in_time;
use crate::support::process::resident;
use crate::support::tls::Authority;
use crate::support::tokens::mint;
use crate::support::udp::capsule;
use postern_testkit::ports;
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::task::yield_now;

/// Streams whose client reads nothing.
const STALLED: usize = 64;
/// Datagrams that come for each of them: 150 MiB in all.
const FLOOD: usize = 2_000;

struct Stage {
    _home: TempDir,
    issuer: Daemon,
    gateway: Daemon,
    /// The next hop of all of its tunnels.
    _exit: Option<Daemon>,
}

impl Stage {
    async fn direct() -> Self {
        Self::start(false).await
    }

    async fn through_another() -> Self {
        Self::start(true).await
    }

    async fn start(has_exit: bool) -> Self {
        let home = TempDir::new().unwrap();
        let authority = Authority::new(home.path());
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let Authority { ca, certificate, key, client: [client, client_key], .. } = &authority;
        let mut through = "udp = \"any\"\n".to_owned();
        let mut exit = None;
        if has_exit {
            let (port, folder) = (ports::free(), home.path().join("exit"));
            std::fs::create_dir(&folder).unwrap();
            let listener = format!(
                "udp = \"any\"\n[peers]\naddress = \"127.0.0.1:{port}\"\ncertificate = {certificate:?}\nkey = {key:?}\nclient_ca = {ca:?}\n"
            );
            let config = gateway_config(&folder, &issuer.http(), "", "1s", &listener);
            exit = Some(Daemon::ready("gateway", &config).await);
            through = format!(
                "udp = \"any\"\nvia = \"exit\"\n[[egress.next_hops]]\nname = \"exit\"\nurls = [\"https://127.0.0.1:{port}\"]\n\
                 ca = {ca:?}\ncertificate = {client:?}\nkey = {client_key:?}\n"
            );
        }
        let gateway =
            Daemon::ready("gateway", &gateway_config(home.path(), &issuer.http(), "", "1s", &through)).await;
        Self { _home: home, issuer, gateway, _exit: exit }
    }

    /// Resident memory of the gateway, in KiB.
    fn memory(&self) -> u64 {
        resident(self.gateway.process.id())
    }

    fn mint(&self, count: usize) -> Vec<String> {
        mint(&self.issuer.http(), &self.gateway.http(), count)
    }
}

async fn open(connection: &Connection, target: SocketAddr, token: &str) -> Tunnel {
    let (head, tunnel) = connection.udp(target, token).await.unwrap();
    tunnel.unwrap_or_else(|| panic!("{head:?}"))
}

/// Floods streams whose client does not read: the gateway keeps a burst of 64 KiB for each.
async fn assert_bounded(stage: &Stage) {
    const EACH: u64 = 64;
    let tokens = stage.mint(STALLED + 1);
    let (connection, target) = (Connection::wide(stage.gateway.address).await.unwrap(), echo().await);
    let mut healthy = open(&connection, target, &tokens[STALLED]).await;
    healthy.echoes(&capsule(&[1; 100])).await.unwrap();
    let flooding = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (mut stalled, mut flooded) = (Vec::new(), Vec::new());
    for token in &tokens[..STALLED] {
        let mut stream = open(&connection, flooding.local_addr().unwrap(), token).await;
        stream.send(&capsule(b"flood me")).await.unwrap();
        flooded.push(in_time(flooding.recv_from(&mut [0; 16])).await.unwrap().1);
        stalled.push(stream);
    }
    let before = stage.memory();
    let mut most = before;
    for round in 0..FLOOD {
        for to in &flooded {
            let _ = flooding.send_to(&[7; 1200], to).await; // what the kernel does not take is lost
        }
        yield_now().await;
        if round % 50 == 0 {
            healthy.echoes(&capsule(&[round as u8; 100])).await.unwrap();
            most = most.max(stage.memory());
        }
    }
    println!("{STALLED} stalled streams: {before} KiB before the flood, {most} KiB at most");
    assert!(
        most < before + STALLED as u64 * EACH + 8 * 1024,
        "{before} KiB before the flood, {most} KiB at most"
    );
    // The stalled streams do not stop it either once the flood is over.
    healthy.echoes(&capsule(&[1; 100])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_targets_costs_a_bounded_amount_for_each_stream_that_is_not_read() {
    assert_bounded(&Stage::direct().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_through_a_next_hop_costs_a_bounded_amount_for_each_stream_that_is_not_read() {
    assert_bounded(&Stage::through_another().await).await;
}

/// The target takes nothing, and UDP has no back pressure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_a_client_costs_no_memory() {
    for stage in [Stage::direct().await, Stage::through_another().await] {
        let tokens = stage.mint(2);
        let deaf = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (connection, target) = (Connection::wide(stage.gateway.address).await.unwrap(), echo().await);
        let mut healthy = open(&connection, target, &tokens[0]).await;
        let mut flood = open(&connection, deaf.local_addr().unwrap(), &tokens[1]).await;
        healthy.echoes(&capsule(&[1; 100])).await.unwrap();
        let burst = capsule(&[7; 1200]).repeat(50);
        let (before, mut most) = (stage.memory(), 0);
        for round in 0..1500 {
            flood.send(&burst).await.unwrap();
            if round % 50 == 0 {
                healthy.echoes(&capsule(&[2; 100])).await.unwrap();
                most = most.max(stage.memory());
            }
        }
        println!("a flood of 86 MiB: {before} KiB before, {most} KiB at most");
        assert!(most < before + 8 * 1024, "{before} KiB before the flood, {most} KiB at most");
    }
}
