//! Clients that do not read their answers.

use crate::support::{Running, certified, config};
use postern_config::ConfigDuration;
use postern_daemon::tls::client_config;
use postern_testkit::clients::flood_until_cut;
use postern_token::DIRECTORY_PATH;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

fn request() -> String {
    format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

#[tokio::test]
async fn a_client_that_never_reads_gives_its_place_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.connections = NonZeroUsize::MIN;
    config.limits.header_timeout = ConfigDuration::millis(300);
    let issuer = Running::start(config).await;
    flood_until_cut(issuer.connect().await, &request()).await;
    assert_eq!(issuer.get("").await.status, 200);
}

#[tokio::test]
async fn so_does_one_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let tls = certified(directory.path());
    let connector = TlsConnector::from(Arc::clone(&client_config(tls.certificate.as_deref()).unwrap()));
    let mut config = config(directory.path());
    config.tls = Some(tls);
    config.limits.header_timeout = ConfigDuration::secs(2); // the handshake is made within it
    let issuer = Running::start(config).await;
    let stream = connector.connect("localhost".try_into().unwrap(), issuer.connect().await).await.unwrap();
    flood_until_cut(stream, &request()).await;
}
