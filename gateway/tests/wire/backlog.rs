//! Clients that the kernel has accepted and the gateway has not yet: a drain must not reset them.

use crate::support::client::{Client, connect_with};
use crate::support::{ISSUER, PATIENCE, config, directory};
use postern_config::ConfigDuration;
use postern_daemon::admin::ProcessContext;
use postern_daemon::drain::Drained;
use postern_gateway::Gateway;
use tempfile::TempDir;
use tokio::time::timeout;

#[tokio::test]
async fn a_drain_serves_everyone_who_was_already_waiting() {
    const CLIENTS: usize = 600;
    let home = TempDir::new().unwrap();
    std::fs::write(home.path().join("keys.json"), directory(vec![ISSUER.entry(None, None)])).unwrap();
    let process = ProcessContext::default();
    let mut config = config(home.path());
    config.listen.patience = ConfigDuration::millis(0); // it listens before it runs
    let (gateway, shutdown) = (Gateway::bind(&config, &process).unwrap(), process.shutdown);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Client::connect(gateway.local_addr()).await;
        // Refused by policy of form, so it does not matter whether the keys have been read.
        client.send(connect_with("no-port.example", &[])).await;
        clients.push(client);
    }
    shutdown.drain();
    let (drained, ran) = timeout(PATIENCE, async {
        tokio::join!(
            async {
                let drained = shutdown.wait(PATIENCE);
                let answers = async {
                    for mut client in clients {
                        client.answer().await.assert_refused(
                            400,
                            "http_request_error",
                            "port from 1 to 65535",
                        );
                        client.closed_silently().await;
                    }
                };
                tokio::join!(drained, answers).0
            },
            gateway.run()
        )
    })
    .await
    .unwrap();
    ran.unwrap();
    assert_eq!(drained, Drained::Finished);
}
