//! `--self-signed`: TLS without preparations, to try it.

use crate::support::daemon::{Daemon, client_config, gateway_config, issuer_config};
use crate::support::process::run;
use crate::support::{proxy, target};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

#[tokio::test]
async fn issuer_gateway_and_agent_speak_tls_with_a_certificate_made_at_the_start() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("made");
    let (ca, own) = (folder.join("ca.pem"), folder.join("server.pem"));
    let more: [&OsStr; 2] = ["--self-signed".as_ref(), folder.as_ref()];
    let issuer = Daemon::ready_with("issuer", &issuer_config(home.path(), ""), &more).await;
    let first = std::fs::read(&own).unwrap();
    assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);

    let trusted = format!("ca = {ca:?}");
    let config = gateway_config(home.path(), &issuer.https(), &trusted, "1s", "");
    let gateway = Daemon::ready_with("gateway", &config, &more).await;
    assert_eq!(std::fs::read(&own).unwrap(), first, "it is made once");
    let url = format!("https://localhost:{}", gateway.address.port());
    let config = client_config(home.path(), &url, &issuer.https(), Some(&ca));
    let agent = Daemon::ready("client", &config).await;
    let mut stream = proxy::dial(agent.address).await.unwrap();
    let head = proxy::connect(&mut stream, &target::echo().await.to_string(), None).await.unwrap();
    assert_eq!(head.status, 200, "{head:?}");
    proxy::echoes(&mut stream, b"there and back").await.unwrap();
}

#[test]
fn two_certificates_are_one_too_many() {
    let home = TempDir::new().unwrap();
    let config = issuer_config(home.path(), "[tls]\ncertificate = \"a\"\nkey = \"b\"\n");
    let args: [&OsStr; 5] = [
        "issuer".as_ref(),
        "--config".as_ref(),
        config.as_ref(),
        "--self-signed".as_ref(),
        home.path().as_ref(),
    ];
    let ended = run(args);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("has one in [tls]: choose one"), "{}", ended.stderr);
}
