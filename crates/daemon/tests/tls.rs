//! TLS from files, and the HTTP client over it, on real sockets.
#![allow(clippy::unwrap_used)] // clippy.toml allows it in #[test] functions, not in the functions they call

use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use postern_daemon::drain::Shutdown;
use postern_daemon::examination::Verdict;
use postern_daemon::http::{BodyError, ClientOptions, chain, client, fetch_limited, read_limited, text};
use postern_daemon::readiness::Readiness;
use postern_daemon::tls::{
    AcmeConfig, ClientConfig, ServerConfig, ServerTls, TlsConfig, accept, client_config,
};
use rcgen::{CertificateParams, CertifiedKey, KeyPair, generate_simple_self_signed};
use std::convert::Infallible;
use std::fs::Permissions;
use std::future::ready;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::server::ServerSessionMemoryCache;
use tokio_rustls::rustls::{ClientConnection, Error, HandshakeKind, ServerConnection};

struct Files {
    directory: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

fn files() -> Files {
    let directory = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = directory.path().join("cert.pem");
    let key = directory.path().join("key.pem");
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    Files { directory, certificate, key }
}

/// Answers every request with ten bytes; reads 8 bytes of a request's body at most. Plain without a configuration.
async fn serve(tls: Option<Arc<ServerConfig>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
        Ok::<_, Infallible>(
            match (request.uri().clone().path(), read_limited(request.into_body(), 8).await) {
                ("/elsewhere", _) => http::Response::builder()
                    .status(302)
                    .header("location", "/")
                    .body(http_body_util::Full::default())
                    .unwrap(),
                (_, Ok(_)) => text(StatusCode::OK, "0123456789"),
                (_, Err(error)) => text(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
            },
        )
    });
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let tls = tls.clone();
            tokio::spawn(async move {
                let http = http1::Builder::new();
                match tls {
                    Some(tls) => match accept(&tls, stream).await {
                        Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                        Err(_) => return,
                    },
                    None => http.serve_connection(TokioIo::new(stream), service).await,
                }
                .ok();
            });
        }
    });
    address
}

fn client_trusting(ca_file: Option<&Path>) -> reqwest::Client {
    let options = ClientOptions {
        ca_file: ca_file.map(Path::to_owned),
        timeout: Duration::from_secs(20),
        ..ClientOptions::default()
    };
    client(&options).unwrap()
}

/// Returns the kind of a handshake in memory, or the client's error.
fn shake_hands(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<HandshakeKind, Error> {
    let name = "localhost".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let mut flight = Vec::new();
    while client.wants_write() || server.wants_write() {
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        server.read_tls(&mut flight.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        flight.clear();
        while server.wants_write() {
            server.write_tls(&mut flight).unwrap();
        }
        client.read_tls(&mut flight.as_slice()).unwrap();
        client.process_new_packets()?;
        flight.clear();
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(client.handshake_kind().unwrap())
}

/// Returns the kind of the second of two handshakes.
fn second_handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> HandshakeKind {
    assert_eq!(shake_hands(client, server), Ok(HandshakeKind::Full));
    shake_hands(client, server).unwrap()
}

/// A ticket would show a gateway which tunnels are one client's.
#[test]
fn no_connection_resumes_another_ones_session() {
    let files = files();
    let ours = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    let mut tickets = ServerConfig::clone(&ours);
    tickets.send_tls13_tickets = 2;
    tickets.session_storage = ServerSessionMemoryCache::new(16);
    let client = client_config(Some(&files.certificate)).unwrap();
    let mut remembers = ClientConfig::clone(&client);
    remembers.resumption = Resumption::in_memory_sessions(16);
    let (tickets, remembers) = (Arc::new(tickets), Arc::new(remembers));
    assert_eq!(second_handshake(&remembers, &tickets), HandshakeKind::Resumed, "two that would");
    assert_eq!(second_handshake(&remembers, &ours), HandshakeKind::Full, "our server");
    assert_eq!(second_handshake(&client, &tickets), HandshakeKind::Full, "our client");
}

#[tokio::test]
async fn a_client_that_trusts_the_file_gets_an_answer_and_others_do_not() {
    let files = files();
    let config = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    let address = serve(Some(config)).await;
    let url = format!("https://localhost:{}/", address.port());

    let response = client_trusting(Some(&files.certificate)).get(&url).send().await.unwrap();
    assert_eq!(fetch_limited(response, 10).await.unwrap(), "0123456789");

    let error = client_trusting(None).get(&url).send().await.unwrap_err();
    let said = chain(&error);
    assert!(said.contains("certificate"), "{said}");
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_given_up_after_16_kib() {
    let files = files();
    let config = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    let (mut client, server) = tokio::io::duplex(1 << 20);
    // Pieces of a ClientHello that announces 65,520 bytes.
    let record =
        |begin: &[u8]| [&[22, 3, 1, 0x40, 0][..], begin, &vec![0; (16 << 10) - begin.len()]].concat();
    client.write_all(&record(&[1, 0, 0xff, 0xf0, 3, 3])).await.unwrap();
    client.write_all(&record(&[])).await.unwrap();
    let refused = tokio::time::timeout(Duration::from_secs(20), accept(&config, server)).await;
    let refused = refused.expect("it does not wait for the rest").unwrap_err();
    assert_eq!(
        (refused.kind(), refused.to_string().as_str()),
        (ErrorKind::InvalidData, "an endless TLS handshake")
    );
}

/// Curl and browsers show it; an alert of TLS would be "Received HTTP/0.9".
#[tokio::test]
async fn a_client_that_speaks_http_without_tls_reads_that_it_should() {
    let files = files();
    let config = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    for request in ["GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "CONNECT a.example:443 HTTP/1.1\r\n", "P"] {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let reading = async {
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; 1024];
            let mut read = 0;
            while !answer[..read].ends_with(b"use https://\n") {
                read += client.read(&mut answer[read..]).await.unwrap();
            }
            drop(client);
            String::from_utf8(answer[..read].to_vec()).unwrap()
        };
        let (refused, answer) = tokio::join!(accept(&config, server), reading);
        assert_eq!(refused.unwrap_err().to_string(), "HTTP without TLS");
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(
            answer.contains("\r\nconnection: close\r\n") && answer.contains("This port speaks TLS"),
            "{answer}"
        );
    }
}

/// An ended certificate is refused by every client, and nothing else would show it.
#[tokio::test]
async fn readiness_follows_the_end_of_the_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (directory.path().join("certificate.pem"), directory.path().join("key.pem"));
    let write = |end: SystemTime| {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (UNIX_EPOCH.into(), end.into());
        let own = KeyPair::generate().unwrap();
        std::fs::write(&certificate, params.self_signed(&own).unwrap().pem()).unwrap();
        std::fs::write(&key, own.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    };
    let hour = Duration::from_secs(3600);
    write(UNIX_EPOCH + 24 * hour);
    let tls = ServerTls::load(&certificate, &key).unwrap();
    assert!(tls.examine().seen.contains("ended at 1970-01-02T00:00:00Z"));
    let (shutdown, readiness, ends) = (Shutdown::new(), Readiness::new(), Arc::new(AtomicU64::new(0)));
    let (gate, last) = (readiness.gate("certificate"), Arc::clone(&ends));
    let renewing = tokio::spawn(tls.clone().renew(
        gate,
        move |end| last.store(end, Relaxed),
        ready(()),
        shutdown.clone(),
    ));
    let is = async |wanted: fn(&Readiness) -> bool| {
        while !wanted(&readiness) {
            tokio::task::yield_now().await;
        }
    };
    is(|readiness| {
        readiness.reasons().iter().any(|reason| reason.contains("Renew it: the files are read again"))
    })
    .await;
    assert_eq!(ends.load(Relaxed), 86_400);
    write(SystemTime::now() + hour);
    shutdown.reload();
    is(|readiness| readiness.reasons().is_empty() && readiness.degraded()[0].contains("ends at")).await;
    write(SystemTime::now() + 200_000 * hour);
    shutdown.reload();
    is(|readiness| readiness.reasons().is_empty() && readiness.degraded().is_empty()).await;
    assert_eq!(tls.examine().verdict, Verdict::Well);
    shutdown.stop();
    renewing.await.unwrap();
}

/// Bytes that directly follow the handshake are read together with it, but are no part of it.
#[tokio::test]
async fn data_right_after_the_handshake_arrives_whole() {
    let files = files();
    let server_config = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    let client_config = client_config(Some(&files.certificate)).unwrap();
    let (client, server) = tokio::io::duplex(1 << 20);
    let sent: Vec<u8> = (0..100_000_u32).map(|number| (number % 251) as u8).collect();
    let sending = async {
        let name = "localhost".try_into().unwrap();
        let mut client = TlsConnector::from(client_config).connect(name, client).await.unwrap();
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut received = Vec::new();
        accept(&server_config, server).await.unwrap().read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(sending, receiving);
    assert!(received == sent);
}

/// Authorities renew certificates every few weeks; a restart for it would cut tunnels.
#[tokio::test]
async fn a_renewed_certificate_is_shown_after_a_reload_and_a_broken_one_never() {
    let (files, renewed) = (files(), self::files());
    let tls = ServerTls::load(&files.certificate, &files.key).unwrap();
    let address = serve(Some(tls.config())).await;
    let shutdown = Shutdown::new();
    let gate = Readiness::new().gate("certificate");
    let renewing = tokio::spawn(tls.renew(gate, |_| {}, ready(()), shutdown.clone()));
    let url = format!("https://localhost:{}/", address.port());
    let (before, after) = (files.directory.path().join("before.pem"), renewed.certificate.clone());
    std::fs::copy(&files.certificate, &before).unwrap();
    // A new client each time, since a client keeps its connection.
    let accepted = async |trusted: &Path| client_trusting(Some(trusted)).get(&url).send().await.is_ok();
    assert!(accepted(&before).await);
    assert!(!accepted(&after).await);

    std::fs::copy(&renewed.certificate, &files.certificate).unwrap();
    shutdown.reload(); // a certificate without its key
    tokio::task::yield_now().await;
    assert!(accepted(&before).await);

    std::fs::copy(&renewed.key, &files.key).unwrap();
    tokio::time::timeout(Duration::from_secs(20), async {
        while !accepted(&after).await {
            shutdown.reload();
        }
    })
    .await
    .expect("the renewed certificate is shown");
    assert!(!accepted(&before).await);
    shutdown.stop();
    renewing.await.unwrap();
}

/// A program that renews certificates need not know that there is a server to reload.
#[tokio::test(start_paused = true)]
async fn files_that_change_are_read_again_within_a_minute() {
    let (files, renewed) = (files(), self::files());
    let tls = ServerTls::load(&files.certificate, &files.key).unwrap();
    let shutdown = Shutdown::new();
    let readiness = Readiness::new();
    let gate = readiness.gate("certificate");
    let renewing = tokio::spawn(tls.clone().renew(gate, |_| {}, ready(()), shutdown.clone()));
    let minute = || tokio::time::sleep(Duration::from_secs(61));
    let shows = |trusted: &Path| shake_hands(&client_config(Some(trusted)).unwrap(), &tls.config()).is_ok();
    minute().await;
    std::fs::copy(&renewed.certificate, &files.certificate).unwrap();
    minute().await;
    assert!(!shows(&renewed.certificate), "a certificate without its key is not used");
    let degraded = readiness.degraded().join(" ");
    assert!(readiness.reasons().is_empty() && degraded.contains("cannot be used together"), "{degraded}");
    std::fs::copy(&renewed.key, &files.key).unwrap();
    assert!(!shows(&renewed.certificate));
    minute().await;
    assert!(shows(&renewed.certificate) && readiness.degraded().is_empty());
    shutdown.stop();
    renewing.await.unwrap();
}

#[tokio::test]
async fn a_plain_client_needs_no_trust_and_goes_where_it_is_told() {
    let address = serve(None).await;
    let client = client_trusting(None);
    let response = client.get(format!("http://{address}/elsewhere")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::FOUND, "redirects are not followed");
    let response = client.post(format!("http://{address}/")).body("12345678").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let response = client.post(format!("http://{address}/")).body("123456789").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(fetch_limited(response, 100).await.unwrap(), "the body is longer than 8 bytes");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let address = serve(None).await;
    let response = client_trusting(None).get(format!("http://{address}/")).send().await.unwrap();
    assert_eq!(fetch_limited(response, 9).await, Err(BodyError::TooLong { limit: 9 }));
}

#[test]
fn what_is_wrong_with_the_files_is_said_by_name() {
    let files = files();
    let others = self::files();
    let (certificate, key) = (files.certificate.as_path(), files.key.as_path());
    let missing = files.directory.path().join("missing.pem");
    let broken = files.directory.path().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    let said = |certificate: &Path, key: &Path| ServerTls::load(certificate, key).unwrap_err().to_string();

    assert!(said(&missing, key).starts_with(&format!("cannot read {}: ", missing.display())));
    assert!(said(certificate, &missing).starts_with(&format!("cannot read {}: ", missing.display())));
    assert!(said(key, key).starts_with(&format!("there is no certificate in {}: ", key.display())));
    assert!(
        said(certificate, certificate)
            .starts_with(&format!("there is no private key in {}: ", certificate.display()))
    );
    assert!(said(&broken, key).starts_with(&format!("{} is not a PEM file: ", broken.display())));
    let mismatch = said(certificate, &others.key);
    assert!(mismatch.contains(&others.key.display().to_string()), "{mismatch}");
    assert!(mismatch.ends_with("give the key that this certificate was made for"), "{mismatch}");
}

#[test]
fn what_is_wrong_with_the_section_is_said() {
    let acme = |names: &[&str], agree_to_terms| {
        let (names, state) = (names.iter().map(|name| (*name).to_owned()).collect(), PathBuf::from("state"));
        let directory = "https://authority.example/dir".to_owned();
        Some(AcmeConfig { names, agree_to_terms, state, directory, ca: None, contact: None })
    };
    let file = || Some(PathBuf::from("server.pem"));
    let good = acme(&["gateway.example"], true);
    for (certificate, key, acme, expected) in [
        (None, None, None, "from two files, tls.certificate and tls.key, or from an authority"),
        (file(), None, None, "set both files"),
        (file(), file(), good.clone(), "or that section alone"),
        (None, None, acme(&[], true), "tls.acme.names is empty"),
        (None, None, acme(&["gateway.example", "*.example"], true), "\"*.example\", which is no host name"),
        (None, None, acme(&["192.0.2.1"], true), "\"192.0.2.1\", which is no host name"),
        (
            None,
            None,
            acme(&["gateway.example"], false),
            "read the terms of service of https://authority.example/dir",
        ),
    ] {
        let error = TlsConfig { certificate, key, acme, client_ca: None }.load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let elsewhere =
        good.clone().map(|acme| AcmeConfig { directory: "authority.example/dir".to_owned(), ..acme });
    let error = TlsConfig { acme: elsewhere, ..TlsConfig::default() }.load().unwrap_err().to_string();
    assert!(error.contains("is no https:// URL"), "{error}");
    let tls = TlsConfig { acme: good, ..TlsConfig::default() }.load().unwrap();
    assert!(tls.examine().seen.contains("there is no certificate"));
}

#[test]
fn only_http_1_1_is_offered() {
    let files = files();
    let config = ServerTls::load(&files.certificate, &files.key).unwrap().config();
    assert_eq!(config.alpn_protocols, [b"http/1.1"]);
    let config: Arc<_> = postern_daemon::tls::client_config(None).unwrap();
    assert_eq!(config.alpn_protocols, [b"http/1.1"]);
}
