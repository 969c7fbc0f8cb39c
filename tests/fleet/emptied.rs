//! A single memcached that loses everything again and again, as by restarts: each time its gateway plants a mark, and agents take it.

use super::marks::config_with;
use crate::support::daemon::{Daemon, client_config, issuer_config};
use crate::support::memcached::Memcached;
use crate::support::{PATIENCE, proxy, target};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a user of the agent waits between two tries.
const PAUSE: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_served_again_each_time_that_a_single_store_is_emptied() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let mut server = Memcached::start();
    let store = format!("memcached.addresses = [\"{}\"]\n", server.address());
    let config = config_with(home.path(), "gateway", &issuer, &store, "");
    let gateway = Daemon::ready("gateway", &config).await;
    let agent =
        Daemon::ready("client", &client_config(home.path(), &gateway.http(), &issuer.http(), None)).await;
    let target = target::echo().await.to_string();
    let tunnel = async || {
        let mut stream = proxy::dial(agent.address).await.unwrap();
        proxy::connect(&mut stream, &target, None).await.unwrap().status
    };
    assert_eq!(tunnel().await, 200);
    for loss in 1..=6 {
        server.kill();
        server.launch();
        let (emptied, mut served) = (Instant::now(), 0);
        // What is good again is good for longer than one tunnel.
        while served < 5 {
            let elapsed = emptied.elapsed();
            assert!(elapsed < PATIENCE, "not served {elapsed:?} after loss {loss}");
            served = if tunnel().await == 200 { served + 1 } else { 0 };
            tokio::time::sleep(PAUSE).await;
        }
        println!("loss {loss}: served again after {:?}", emptied.elapsed());
    }
}
