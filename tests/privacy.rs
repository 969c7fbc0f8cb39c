//! A hundred tunnels, and then a search of everything that a whole system wrote, served, sent or keeps: no target, no
//! client, no byte of a spent token. Every request is traced.

use crate::support::admin::{self, metrics_when};
use crate::support::association::{self, Program};
use crate::support::collector::Collector;
use crate::support::eventually;
use crate::support::http2::Connection;
use crate::support::needles::Needles;
use crate::support::up::{Ports, Up, up};
use crate::support::{proxy, target, tokens, udp};
use postern_testkit::ports;
use postern_token::{Token, encode_base64url};
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use tempfile::TempDir;

/// The target of tunnels: an address that nothing writes by accident.
const TARGET: Ipv4Addr = Ipv4Addr::new(127, 77, 88, 99);
/// Names under localhost are loopback for every resolver (RFC 6761, section 6.3).
const TARGET_NAME: &str = "secret-target-7f3a.localhost";
/// A name that never has an address (RFC 6761, section 6.4).
const NO_NAME: &str = "secret-nowhere-51c9.invalid";
/// The clients' address.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 66, 55, 44);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_by_default() {
    assert_nothing_leaks(None).await;
}

/// At the finest level of every crate of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_when_everything_is_traced() {
    assert_nothing_leaks(Some("postern=trace,warn")).await;
}

/// The dependencies at their finest level too: an operator who looks for a fault must not collect destinations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_when_the_dependencies_are_traced_too() {
    assert_nothing_leaks(Some("trace")).await;
}

async fn assert_nothing_leaks(level: Option<&str>) {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    let collector = Collector::start().await;
    let mut command = up(&data, Ports::any());
    command.args(["--open-egress", "--traces", &collector.url()]).current_dir(home.path());
    if let Some(level) = level {
        command.env("RUST_LOG", level);
    }
    let system = Up::of(command);
    let ports = system.ports;
    let mut needles = Needles::default();
    let mut exposed = Exposed::default();

    metrics_when(ports.admin, "the wallet is full", |metrics| metrics.wallet() == 128).await;
    let before = tokens::in_wallet(&data.join("wallet"));
    let printed = [ports.client, ports.gateway, ports.issuer, ports.admin, collector.address];
    let printed = printed.map(|address| address.port());
    through_the_agent(ports.client, &printed, &mut needles).await;
    exposed.pages(ports.admin).await;
    let spent = to_the_gateway(ports, &printed, &mut needles, &mut exposed).await;
    exposed.pages(ports.admin).await;
    exposed.files(home.path());
    let spans = collected(&collector).await;
    let ended = system.terminate();
    ended.assert_stopped();
    if level.is_some() {
        assert!(ended.stderr.contains(" INFO postern"), "nothing was traced: {}", ended.stderr);
    }
    exposed.0.push(("spans".to_owned(), spans));
    exposed.0.push(("stdout".to_owned(), ended.stdout.into_bytes()));
    exposed.0.push(("stderr".to_owned(), ended.stderr.into_bytes()));
    exposed.files(home.path());

    let left: HashSet<Vec<u8>> =
        tokens::in_wallet(&data.join("wallet")).iter().map(|token| token.as_bytes().to_vec()).collect();
    let (kept, gone): (Vec<Token>, Vec<Token>) =
        before.into_iter().partition(|token| left.contains(token.as_bytes()));
    // 70 requests, eight of which were for a target that had failed before: after five seconds the agent asks again.
    assert_eq!(kept.len() + gone.len(), 128);
    assert!((62..=70).contains(&gone.len()), "the agent spent {} tokens", gone.len());
    for token in gone.iter().chain(&spent) {
        needles.secret("a token's nonce", &token.nonce().0);
        needles.secret("a token's authenticator", token.authenticator());
    }
    needles.address("the target's address", TARGET);
    needles.address("the client's address", CLIENT);
    needles.text("the target's name", "secret-target-7f3a");
    needles.text("the name that has no address", "secret-nowhere-51c9");

    let found = exposed.found(&needles);
    assert!(found.is_empty(), "RUST_LOG {level:?}: {found:#?}");
    assert_planted_needles_are_found(&exposed, &needles, &gone[0]);
}

/// Returns all that the collector has, once the last tunnel's span is there: 60 went through the agent, which opens a tunnel also
/// for a plain http:// request, and 40 straight to the gateway.
async fn collected(collector: &Collector) -> Vec<u8> {
    eventually("100 tunnels are traced", || async {
        let spans = collector.received();
        let number = |name: &[u8]| spans.windows(name.len()).filter(|found| *found == name).count();
        // A span's name is field 5 of its message.
        (number(b"\x2a\x06tunnel") == 100 && number(b"already_spent") >= 40).then_some(spans)
    })
    .await
}

/// A target on a port that the system does not print as its own: the kernel may give one port at two addresses.
async fn apart<F: Future<Output = SocketAddr>>(printed: &[u16], target: impl Fn() -> F) -> SocketAddr {
    for _ in 0..100 {
        let address = target().await;
        if !printed.contains(&address.port()) {
            return address;
        }
    }
    panic!("every port is taken");
}

/// 60 tunnels by every way in, five of them for UDP, and ten requests that come to nothing.
async fn through_the_agent(agent: SocketAddr, printed: &[u16], needles: &mut Needles) {
    let (far, near) = (apart(printed, || target::echo_at(TARGET)).await, target::echo().await);
    let far_web = apart(printed, || target::web(TARGET)).await;
    let near_web = target::web(Ipv4Addr::LOCALHOST).await;
    let closed = apart(printed, async || ports::closed_at(TARGET)).await;
    let far_udp = apart(printed, || association::echo_at((TARGET, 0))).await;
    // The name has addresses of both families.
    let both = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::LOCALHOST, 0))];
    let near_udp = apart(printed, || association::echo_at(&both[..])).await;
    for address in [far, near, far_web, near_web, closed, far_udp, near_udp] {
        needles.port("a target's port", address.port());
    }
    for round in 0..20 {
        let is_named = round % 2 == 0;
        let (host, port, web_port) = if is_named {
            (TARGET_NAME.to_owned(), near.port(), near_web.port())
        } else {
            (TARGET.to_string(), far.port(), far_web.port())
        };
        let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
        let head = proxy::connect(&mut stream, &format!("{host}:{port}"), None).await.unwrap();
        assert_eq!(head.status, 200, "{head:?}");
        proxy::echoes(&mut stream, b"CONNECT").await.unwrap();

        let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
        let response = proxy::get(&mut stream, &format!("{host}:{web_port}"), None).await.unwrap();
        assert_eq!(response.body, target::PAGE, "{response:?}");

        if round % 8 == 4 {
            let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
            let target = if round == 4 { far_udp } else { near_udp };
            assert_eq!(udp::upgrade(&mut stream, target, None).await.unwrap().status, 101);
            proxy::echoes(&mut stream, &udp::capsule(b"Upgrade")).await.unwrap();
            continue;
        }
        if round % 4 == 0 {
            let target = association::name(TARGET_NAME, near_udp.port());
            let target = if round == 0 { association::v4(far_udp) } else { target };
            Program::at(CLIENT, agent).await.echo(&target, 16).await;
            continue;
        }
        let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
        assert_eq!(proxy::socks(&mut stream, &host, port).await.unwrap(), 0);
        proxy::echoes(&mut stream, b"SOCKS5").await.unwrap();
    }
    // Errors are where programs write most.
    for _ in 0..3 {
        for target in [closed.to_string(), format!("{NO_NAME}:443")] {
            let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
            let head = proxy::connect(&mut stream, &target, None).await.unwrap();
            assert_eq!(head.status, 502, "{head:?}");
        }
    }
    for _ in 0..2 {
        for (host, port) in [(TARGET.to_string(), closed.port()), (NO_NAME.to_owned(), 443)] {
            let mut stream = proxy::dial_from(CLIENT, agent).await.unwrap();
            assert_ne!(proxy::socks(&mut stream, &host, port).await.unwrap(), 0);
        }
    }
}

/// 40 tunnels from the client to the gateway itself, five of them for UDP over HTTP/2, with every way to be refused; the tokens that were sent.
async fn to_the_gateway(
    ports: Ports,
    printed: &[u16],
    needles: &mut Needles,
    exposed: &mut Exposed,
) -> Vec<Token> {
    let echo = apart(printed, || target::echo_at(TARGET)).await;
    let echo_udp = apart(printed, || association::echo_at((TARGET, 0))).await;
    for address in [echo, echo_udp] {
        needles.port("a target's port", address.port());
    }
    let http2 = Connection::at(CLIENT, ports.gateway).await.unwrap();
    let (issuer, gateway) = (format!("http://{}", ports.issuer), format!("http://{}", ports.gateway));
    let values = tokens::mint(&issuer, &gateway, 40);
    let mut sent = Vec::new();
    let (mut open, mut open_udp) = (Vec::new(), Vec::new());
    for (at, value) in values.iter().enumerate() {
        let token = tokens::token_of(value);
        sent.push(token);
        let mut forged = token.as_bytes().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        let mut foreign = token.as_bytes().to_vec();
        foreign[40] ^= 1; // another challenge's digest: it could be a mark's, and the signature covers it
        let cut = &token.as_bytes()[..300];
        for (bytes, details) in [
            (&forged[..], "signature is not valid"),
            (&foreign, "signature is not valid"),
            (cut, "authenticator"),
        ] {
            let value = format!("PrivateToken token=\"{}\"", encode_base64url(bytes));
            let head = present(ports.gateway, &echo, &value).await.1;
            assert!(head.status == 407 && head.fields.contains(details), "{head:?}");
        }
        if at % 8 == 0 {
            let (head, tunnel) = http2.udp(echo_udp, value).await.unwrap();
            let mut tunnel = tunnel.unwrap_or_else(|| panic!("{head:?}"));
            tunnel.echoes(&udp::capsule(b"straight")).await.unwrap();
            open_udp.push(tunnel);
        } else {
            let (mut stream, head) = present(ports.gateway, &echo, value).await;
            assert_eq!(head.status, 200, "{head:?}");
            proxy::echoes(&mut stream, b"straight").await.unwrap();
            open.push(stream);
        }
        assert!(present(ports.gateway, &echo, value).await.1.says_spent());
    }
    exposed.pages(ports.admin).await; // with 40 tunnels open
    sent
}

async fn present(
    gateway: SocketAddr,
    target: &SocketAddr,
    value: &str,
) -> (tokio::io::BufReader<tokio::net::TcpStream>, proxy::Head) {
    let mut stream = proxy::dial_from(CLIENT, gateway).await.unwrap();
    let head = proxy::connect(&mut stream, &target.to_string(), Some(value)).await.unwrap();
    (stream, head)
}

/// Everything that a system wrote, served or stored, each with its place.
#[derive(Default)]
struct Exposed(Vec<(String, Vec<u8>)>);

impl Exposed {
    async fn pages(&mut self, address: SocketAddr) {
        for path in ["/", "/livez", "/readyz", "/metrics", "/live.json", "/status.json", "/nothing"] {
            let (_, body) = admin::get(address, path).await.unwrap();
            self.0.push((path.to_owned(), body.into_bytes()));
        }
        let open = admin::open_metrics(address).await;
        assert!(open.contains("# {trace_id="), "an exemplar is what must be searched: {open}");
        self.0.push(("/metrics as OpenMetrics".to_owned(), open.into_bytes()));
        self.0.push(("/events".to_owned(), admin::events(address, 2).await.into_bytes()));
    }

    /// Every file below, and its name.
    fn files(&mut self, path: &Path) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            self.0.push(("a file's name".to_owned(), path.display().to_string().into_bytes()));
            if path.is_dir() {
                self.files(&path);
            } else if path.is_file() {
                // Else it is a socket, which holds nothing.
                self.0.push((path.display().to_string(), std::fs::read(&path).unwrap()));
            }
        }
    }

    fn found(&self, needles: &Needles) -> Vec<String> {
        let found = |(place, bytes): &(String, Vec<u8>)| {
            let place = place.clone();
            needles.search(bytes).into_iter().map(move |what| format!("{place}: {what}"))
        };
        self.0.iter().flat_map(found).collect()
    }
}

/// The search works: it finds a needle that was put into a copy of each haystack.
fn assert_planted_needles_are_found(exposed: &Exposed, needles: &Needles, token: &Token) {
    let planted = format!("CONNECT {TARGET_NAME}:443 from {CLIENT} with {}", hex::encode(token.nonce().0));
    for (place, bytes) in &exposed.0 {
        for at in [0, bytes.len() / 2, bytes.len()] {
            let copy = [&bytes[..at], planted.as_bytes(), &bytes[at..]].concat();
            let found = needles.search(&copy);
            for what in ["the target's name", "the client's address", "a token's nonce"] {
                assert!(
                    found.iter().any(|found| found.starts_with(what)),
                    "{place}: {what} is not in {found:?}"
                );
            }
        }
    }
}

/// Each form in which something may show.
#[test]
fn every_form_of_a_needle_is_found() {
    let secret: Vec<u8> = (0..64u8).map(|index| index.wrapping_mul(37) ^ 0x5a).collect();
    let mut needles = Needles::default();
    needles.text("name", "secret-target-7f3a");
    needles.address("address", TARGET);
    needles.port("port", 41234);
    needles.secret("secret", &secret);
    let base64 =
        |before: usize, bytes: &[u8]| encode_base64url(&[&b"xyz"[..before], bytes, b"more"].concat());
    let classic = |text: String| text.replace('-', "+").replace('_', "/");
    let name = b"secret-target-7f3a";
    let mut forms: Vec<(&str, Vec<u8>)> = vec![
        ("name", b"GET http://Secret-Target-7f3a.localhost/".to_vec()),
        ("name", hex::encode(name).into_bytes()),
        ("name", hex::encode_upper(name).into_bytes()),
        ("address", b"peer=127.77.88.99:5".to_vec()),
        ("address", vec![2, 0, 1, 187, 127, 77, 88, 99]),
        ("address", b"::ffff:7f4d:5863".to_vec()),
        ("address", b"7F4D5863".to_vec()),
        ("address", u32::from(TARGET).to_string().into_bytes()),
        ("port", b"[::1]:41234".to_vec()),
        ("secret", secret[20..36].to_vec()),
        ("secret", hex::encode(&secret[7..23]).into_bytes()),
        ("secret", format!("{:?}", &secret[9..25]).into_bytes()),
        ("secret", format!("{:?}", &secret[9..25]).replace(' ', "").into_bytes()),
        ("secret", [b"1", &secret[..16]].concat()),
    ];
    for before in 0..3 {
        forms.push(("name", base64(before, name).into_bytes()));
        forms.push(("name", classic(base64(before, name)).into_bytes()));
        forms.push(("secret", base64(before, &secret[..20]).into_bytes()));
        forms.push(("secret", classic(base64(before, &secret[..20])).into_bytes()));
    }
    for (what, form) in forms {
        let haystack = [b"line one\n", &form[..], b"\nline three"].concat();
        let found = needles.search(&haystack);
        let shown = String::from_utf8_lossy(&form).into_owned();
        assert!(
            found.iter().any(|found| found.starts_with(what)),
            "{what} is not found in {shown:?}: {found:?}"
        );
    }
    let innocent =
        b"2026-11-20T11:27:52.412345Z INFO 127.0.0.1:8118, secret-other 127.77.8.99, [1, 2, 3], 7f4d 5863";
    assert_eq!(needles.search(innocent), Vec::<String>::new());
    assert_eq!(needles.search(&secret[..15]), Vec::<String>::new(), "15 bytes are not enough to be sure");
}
