//! `kill -9`, again and again: no token is ever sent twice.

use crate::support::gateway::Gateway;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::{Agent, Config};
use postern_config::ConfigDuration;
use postern_daemon::admin::ProcessContext;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WALLET: &str = "POSTERN_TEST_WALLET";
const GATEWAY: &str = "POSTERN_TEST_GATEWAY";
const ISSUER: &str = "POSTERN_TEST_ISSUER";

/// Not a test but the process that is killed: an agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by another test"]
async fn the_agent_that_is_killed() {
    let wallet = std::env::var(WALLET).expect("the tests below set it");
    let mut config = Config::new(std::env::var(GATEWAY).unwrap(), wallet);
    config.issuer.url = Some(std::env::var(ISSUER).unwrap().into());
    config.listen.address = ([127, 0, 0, 1], 0).into();
    (config.wallet.low, config.wallet.high) = (30, 40);
    config.wallet.delay = ConfigDuration::secs(0);
    let agent = Agent::bind(config, &ProcessContext::default()).await.unwrap();
    println!("\nlistening {}", agent.local_addr());
    agent.run().await;
}

fn start(wallet: &Path, gateway: &Gateway, issuer: &Issuer) -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "crash::the_agent_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(WALLET, wallet)
        .env(GATEWAY, gateway.url())
        .env(ISSUER, issuer.url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address =
        lines.find_map(|line| line.unwrap().strip_prefix("listening ").map(|text| text.parse().unwrap()));
    (child, address.expect("the agent starts"))
}

/// Opens tunnels until the agent is gone.
async fn hammer(agent: SocketAddr, target: String) {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    loop {
        let Ok(mut stream) = tokio::net::TcpStream::connect(agent).await else { return };
        let mut answer = [0; 12];
        let exchanged = async {
            tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await?;
            tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await
        };
        if exchanged.await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_agent_never_sends_a_token_again() {
    const KILLS: usize = 25;
    let directory = tempfile::tempdir().unwrap();
    let wallet = directory.path().join("wallet");
    let issuer = Issuer::start().await;
    let gateway = Gateway::start(&issuer).await;
    let target = echo().await.to_string();
    let mut survivors = 0;
    for round in 1..=KILLS {
        let (mut child, agent) = start(&wallet, &gateway, &issuer);
        let stocked = async {
            while unspent(&wallet) < 30 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG, stocked).await.expect("the wallet is filled");
        let before = gateway.tokens().len();
        let hammers: Vec<_> = (0..4).map(|_| tokio::spawn(hammer(agent, target.clone()))).collect();
        // Each time at another point: while only taking, and while taking and minting at once.
        while gateway.tokens().len() < before + round {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        for hammer in hammers {
            tokio::time::timeout(HANG, hammer).await.expect("the agent is gone").unwrap();
        }
        survivors += unspent(&wallet);
        gateway.expect_no_token_twice();
    }
    // Every token that was signed was sent once, or is in the wallet, or went down with a process that had it in hand.
    let (signed, sent, left) = (issuer.signed(), gateway.tokens().len(), unspent(&wallet));
    println!("{KILLS} kills: {signed} signed, {sent} sent, {left} left, {} lost", signed - sent - left);
    assert!(signed >= sent + left);
    assert!(survivors > 0, "tokens that were not sent survive a kill");
}
