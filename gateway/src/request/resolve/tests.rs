//! Lookups against name servers in this process.

use super::*;
use h2::server::handshake;
use http::Response;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Returns a resolver whose name server fails every query, and the number of queries.
async fn failing() -> (Resolver, Arc<AtomicUsize>) {
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut question = [0; 512];
        while let Ok((length, client)) = server.recv_from(&mut question).await {
            count.fetch_add(1, Ordering::Relaxed);
            question[2..4].copy_from_slice(&[0x81, 0x82]); // an answer: SERVFAIL
            let _ = server.send_to(&question[..length], client).await;
        }
    });
    let servers = vec![NameServer { address: address.ip(), port: Some(address.port()) }];
    let settings = Settings { kind: ResolverKind::Udp, servers, ..Settings::default() };
    (Resolver::new(&settings).unwrap(), asked)
}

async fn resolve(resolver: &Resolver, name: &str) -> Result<Vec<IpAddr>, Refusal> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (_, mut families) = resolver.resolve(name, deadline, |_| Ok(())).await?;
    families.rest().await;
    Ok(families.found())
}

fn until(resolver: &Resolver, name: &str, until: Instant) {
    let mut answers = resolver.answers.lock();
    answers.0.get_mut(name).unwrap().iter_mut().flatten().for_each(|known| known.until = until);
}

#[tokio::test]
async fn a_failure_is_remembered_for_a_second_and_for_its_name_alone() {
    let (resolver, asked) = failing().await;
    let fails = async |name| {
        let before = asked.load(Ordering::Relaxed);
        let failed = resolve(&resolver, name).await;
        assert!(matches!(failed, Err(Refusal::Unresolved)), "{failed:?}");
        asked.load(Ordering::Relaxed) > before
    };
    assert!(fails("broken.example").await);
    until(&resolver, "broken.example", Instant::now() + 60 * FAILED); // however slow the machine is
    assert!(!fails("broken.example").await, "the same question again");
    assert!(fails("other.example").await);
    until(&resolver, "broken.example", Instant::now());
    assert!(fails("broken.example").await, "after its time");
}

#[tokio::test]
async fn what_was_found_is_kept_for_its_time_to_live() {
    let (resolver, asked) = failing().await;
    let (now, addresses) = (Instant::now(), ["192.0.2.1".parse().unwrap()]);
    let later = now + Duration::from_secs(60);
    resolver.answers.lock().remember("known.example", Family::V4, &addresses, later, now);
    resolver.answers.lock().remember("known.example", Family::V6, &[], later, now);
    assert_eq!(resolve(&resolver, "known.example").await.unwrap(), addresses);
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_remembered_is_bounded_and_makes_room_by_itself() {
    let (mut answers, now) = (Answers::default(), Instant::now());
    let later = now + Duration::from_secs(60);
    for n in 0..MOST_NAMES {
        answers.remember(&n.to_string(), Family::V4, &[], if n < 9 { later } else { now + FAILED }, now);
    }
    assert_eq!(answers.0.len(), MOST_NAMES);
    answers.remember("new", Family::V6, &[], later, now + FAILED);
    assert_eq!(answers.0.len(), 10, "what has expired goes first");
    for n in 0..MOST_NAMES {
        answers.remember(&n.to_string(), Family::V4, &[], later, now);
    }
    assert!(answers.0.len() < MOST_NAMES && answers.find(&(MOST_NAMES - 1).to_string(), now)[1].is_some());
}

/// Address to which every name here resolves, and its time to live in seconds.
const FOUND: [u8; 4] = [192, 0, 2, 1];
const TTL: u64 = 100;

/// Returns the answer to a query: one IPv4 address, no IPv6 address. `cut` answers are empty and marked as truncated.
fn answer(question: &[u8], cut: bool) -> Vec<u8> {
    let name_ends = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let has_address = question[name_ends..name_ends + 2] == [0, 1] && !cut;
    let mut answer = question[..name_ends + 4].to_vec();
    answer[2..4].copy_from_slice(&[if cut { 0x83 } else { 0x81 }, 0x80]);
    answer[4..12].copy_from_slice(&[0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    if has_address {
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, TTL as u8, 0, 4]);
        answer.extend_from_slice(&FOUND);
    }
    answer
}

/// Answers queries over TCP, where a length precedes each message.
async fn answer_stream(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    while let Ok(length) = stream.read_u16().await {
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question).await.unwrap();
        let answer = answer(&question, false);
        stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&answer).await.unwrap();
    }
}

/// Answers queries in the bodies of HTTP/2 requests.
async fn answer_http2(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut connection = handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/ask");
        tokio::spawn(async move {
            let mut body = request.into_body();
            let mut question = Vec::new();
            while let Some(bytes) = body.data().await {
                question.extend_from_slice(&bytes.unwrap());
            }
            let head =
                Response::builder().header("content-type", "application/dns-message").body(()).unwrap();
            let mut stream = respond.send_response(head, false).unwrap();
            stream.send_data(answer(&question, false).into(), true).unwrap();
        });
    }
}

/// Starts a name server of this kind, and one over UDP on the same port. Its certificate is for `dns.example`.
async fn name_server_of(kind: ResolverKind, home: &Path) -> Settings {
    let made = rcgen::generate_simple_self_signed(["dns.example".to_owned()]).unwrap();
    let ca = home.join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    if kind == ResolverKind::Https {
        tls.alpn_protocols = vec![b"h2".to_vec()];
    }
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let (listener, udp) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Another test may use the port for UDP.
        if let Ok(udp) = UdpSocket::bind(listener.local_addr().unwrap()).await {
            break (listener, udp);
        }
    };
    let address = listener.local_addr().unwrap();
    tokio::spawn(cut_answers(udp));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                match kind {
                    ResolverKind::Tls => answer_stream(acceptor.accept(stream).await.unwrap()).await,
                    ResolverKind::Https => answer_http2(acceptor.accept(stream).await.unwrap()).await,
                    _ => answer_stream(stream).await,
                }
            });
        }
    });
    Settings {
        kind,
        servers: vec![NameServer { address: address.ip(), port: Some(address.port()) }],
        name: kind.is_over_tls().then(|| "dns.example".to_owned()),
        ca: kind.is_over_tls().then_some(ca),
        path: "/ask".to_owned(),
        ..Settings::default()
    }
}

/// Truncates every answer over UDP, so the resolver has to use TCP, too.
async fn cut_answers(server: UdpSocket) {
    let mut question = [0; 512];
    while let Ok((length, client)) = server.recv_from(&mut question).await {
        let _ = server.send_to(&answer(&question[..length], true), client).await;
    }
}

const CHOSEN: [ResolverKind; 4] =
    [ResolverKind::Udp, ResolverKind::Tcp, ResolverKind::Tls, ResolverKind::Https];

#[tokio::test]
async fn name_servers_of_the_operators_choice_are_asked_as_their_kind_says() {
    let home = tempfile::tempdir().unwrap();
    for kind in CHOSEN {
        let settings = name_server_of(kind, home.path()).await;
        let found = resolve(&Resolver::new(&settings).unwrap(), "a.example").await;
        assert_eq!(found.unwrap(), [IpAddr::from(FOUND)], "{kind:?}");
    }
}

#[tokio::test]
async fn a_name_server_whose_certificate_is_anothers_is_not_believed() {
    let home = tempfile::tempdir().unwrap();
    for kind in [ResolverKind::Tls, ResolverKind::Https] {
        let settings =
            Settings { name: Some("other.example".into()), ..name_server_of(kind, home.path()).await };
        let found = resolve(&Resolver::new(&settings).unwrap(), "a.example").await;
        assert!(matches!(found, Err(Refusal::Unresolved)), "{kind:?}: {found:?}");
    }
}

#[tokio::test]
async fn answers_are_kept_for_their_time_to_live() {
    let home = tempfile::tempdir().unwrap();
    let settings = name_server_of(ResolverKind::Tcp, home.path()).await;
    let resolver = Resolver::new(&settings).unwrap();
    resolve(&resolver, "a.example").await.unwrap();
    let known = resolver.answers.lock().0["a.example"][Family::V4 as usize].clone().unwrap();
    let left = known.until.duration_since(Instant::now()).as_secs();
    assert!((TTL.saturating_sub(20)..=TTL).contains(&left), "{left} of {TTL}");
}

#[tokio::test]
async fn other_settings_make_another_resolver_and_equal_ones_keep_it() {
    let home = tempfile::tempdir().unwrap();
    let first = Arc::new(name_server_of(ResolverKind::Tcp, home.path()).await);
    let current = CurrentResolver::new(&first).unwrap();
    assert!(Arc::ptr_eq(&current.of(&first), &current.of(&first)));
    let second = Arc::new(name_server_of(ResolverKind::Tls, home.path()).await);
    let changed = current.of(&second);
    assert!(!Arc::ptr_eq(&changed, &current.of(&first)));
    assert_eq!(resolve(&changed, "a.example").await.unwrap(), [IpAddr::from(FOUND)]);
    // Settings that cannot be used leave the last ones in use.
    let broken = Arc::new(Settings { servers: Vec::new(), ..Settings::clone(&second) });
    let kept = current.of(&second);
    assert!(Arc::ptr_eq(&kept, &current.of(&broken)));
    // They are tried again: their file may be there later.
    let ca = home.path().join("later.pem");
    let later = Arc::new(Settings { ca: Some(ca.clone()), ..Settings::clone(&second) });
    assert!(Arc::ptr_eq(&kept, &current.of(&later)));
    std::fs::copy(second.ca.as_ref().unwrap(), ca).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(!Arc::ptr_eq(&kept, &current.of(&later)));
}
