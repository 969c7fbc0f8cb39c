//! What a client, a target or a name server could do to UDP through the gateway, and egress once more for UDP.

use crate::egress::{DENIED, rules_but_for};
use crate::support::client::{Client, connect};
use crate::support::http2::Http2;
use crate::support::proxies::egress;
use crate::support::target::Echo;
use crate::support::udp::{Flow, any_port, ask, capsule, echo, open, open_with, paid, path, upgrade};
use crate::support::{ISSUER, PATIENCE, Running};
use postern_config::ConfigDuration;
use postern_gateway::config::{Config, Egress};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// A gateway with this egress, and UDP to any port.
async fn gateway(text: &str) -> Running {
    let egress = Egress { udp: egress("udp = \"any\"").udp, ..egress(text) };
    Running::start_with(|config| config.egress = egress).await
}

/// A connection whose window as a whole is no limit.
async fn wide(gateway: &Running) -> Http2 {
    let mut settings = h2::client::Builder::new();
    settings.initial_connection_window_size(1 << 30);
    Http2::with(&settings, TcpStream::connect(gateway.address).await.unwrap()).await
}

async fn refused(gateway: &Running, target: impl std::fmt::Display, status: u16, error: &str, details: &str) {
    let mut client = Http2::connect(gateway.address).await;
    let token = ISSUER.authorization();
    let answer = ask(&mut client, &path(target), &[("proxy-authorization", &token)]).await.answer().await;
    answer.assert_refused(status, error, details);
    let body = String::from_utf8(answer.body).unwrap();
    assert!(!body.contains("127.0.0") && !body.contains("10.0.0"), "{body}");
}

#[tokio::test]
async fn rules_refuse_datagrams_with_the_words_for_tunnels_and_before_the_token_is_spent() {
    let target = echo().await;
    let gateway = gateway(&rules_but_for(target)).await;
    let mut client = Http2::connect(gateway.address).await;
    let token = ISSUER.authorization();
    let multicast = ["224.0.0.251:5353", "[ff02::fb]:5353"]
        .map(|target| (target, "destination_ip_prohibited", "special"));
    for (target, error, details) in DENIED.into_iter().chain(multicast) {
        println!("{target}");
        let answer = ask(&mut client, &path(target), &[("proxy-authorization", &token)]).await.answer().await;
        answer.assert_refused(403, error, details);
    }
    let (answer, mut flow) = open_with(&mut client, target, &token).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    flow.echo(b"with the same token").await;
}

#[tokio::test]
async fn a_name_reaches_private_addresses_over_udp_only_where_its_rule_or_a_network_says_so() {
    let target = echo().await;
    let port = target.port();
    let name = format!("localhost:{port}");
    let by_name = format!("[[rules]]\nallow = [\"{name}\"]");
    for (rules, is_opened) in [
        (by_name.clone(), false),
        (format!("{by_name}\nprivate = true"), true),
        (format!("[[rules]]\nallow = [\"{target}\"]"), true),
        (format!("{by_name}\n[[rules]]\nallow = [\"127.0.0.0/8:*\"]\n[[rules]]\ndeny = [\"*\"]"), true),
        (format!("deny = [\"127.0.0.0/8\", \"::1/128\"]\n{by_name}\nprivate = true"), false),
    ] {
        println!("{rules}");
        let gateway = gateway(&rules).await;
        if is_opened {
            open(&mut Http2::connect(gateway.address).await, &name).await;
        } else {
            refused(&gateway, &name, 403, "destination_ip_prohibited", "private, local or otherwise special")
                .await;
        }
    }
}

#[tokio::test]
async fn datagrams_leave_from_the_listed_addresses_in_turn_and_from_a_rules_own() {
    let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = target.local_addr().unwrap();
    let port = address.port();
    let rules = format!(
        "private = true\nsource = [\"127.0.0.2\", \"127.0.0.3\"]\n\
         [[rules]]\nallow = [\"localhost:{port}\"]\nsource = [\"127.0.0.4\"]"
    );
    let gateway = gateway(&rules).await;
    let mut client = Http2::connect(gateway.address).await;
    let mut seen = Vec::new();
    for asked in [address.to_string(), address.to_string(), format!("localhost:{port}"), address.to_string()]
    {
        let mut flow = open(&mut client, asked).await;
        flow.send(b"from where?").await;
        let (_, from) = timeout(PATIENCE, target.recv_from(&mut [0; 64])).await.unwrap().unwrap();
        seen.push(from.ip().to_string());
    }
    assert_eq!(seen.remove(2), "127.0.0.4");
    assert_ne!(seen[0], seen[1]);
    assert!(seen.iter().all(|from| ["127.0.0.2", "127.0.0.3"].contains(&from.as_str())), "{seen:?}");
    refused(&gateway, "[::1]:9", 502, "destination_ip_unroutable", "no address to reach the target from")
        .await;
    let others = self::gateway("private = true\nsource = [\"192.0.2.1\"]").await;
    refused(&others, address, 502, "destination_ip_unroutable", "no address to reach the target from").await;
}

/// A name server that answers each question for IPv4 with the addresses of its turn, and the last turn's for ever.
async fn name_server(turns: Vec<Vec<Ipv4Addr>>) -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (at, asked) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut room = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut room).await {
            let query = &room[..length];
            // The name, then type and class (RFC 1035, section 4.1.2).
            let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
            let is_v4 = query[end - 3] == 1;
            let turn = if is_v4 { count.fetch_add(1, Ordering::Relaxed) } else { 0 };
            let none = Vec::new();
            let answers = if is_v4 { turns.get(turn).or(turns.last()).unwrap() } else { &none };
            let mut answer =
                [&query[..2], &[0x81, 0x80, 0, 1, 0, answers.len() as u8, 0, 0, 0, 0], &query[12..end]]
                    .concat();
            for address in answers {
                // The same name, type A, class IN, a lifetime of 0.
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                answer.extend(address.octets());
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (at, asked)
}

/// DNS rebinding: an address is judged at each lookup, and the one that was judged gets the datagrams, whatever the next answer is.
#[tokio::test]
async fn a_name_that_turns_to_a_private_address_is_refused_and_no_datagram_goes_there() {
    let (allowed, denied) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST);
    let (good, private) = loop {
        let good = UdpSocket::bind((allowed, 0)).await.unwrap();
        // Another socket may have the port at the other address.
        match UdpSocket::bind((denied, good.local_addr().unwrap().port())).await {
            Ok(private) => break (good, private),
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
        }
    };
    let port = good.local_addr().unwrap().port();
    let (server, asked) =
        name_server(vec![vec![allowed], vec![denied], vec![denied, allowed], vec![denied]]).await;
    let rules = format!(
        "[resolver]\nkind = \"udp\"\nservers = [\"{server}\"]\n[[rules]]\nallow = [\"{allowed}:{port}\"]\n\
         [[rules]]\nallow = [\"rebinding.example:{port}\"]"
    );
    let gateway = gateway(&rules).await;
    let (mut client, target) = (Http2::connect(gateway.address).await, format!("rebinding.example:{port}"));
    let received = async |flow: &mut Flow, words: &[u8]| {
        flow.send(words).await;
        let mut room = [0; 64];
        let (length, from) = timeout(PATIENCE, good.recv_from(&mut room)).await.unwrap().unwrap();
        assert_eq!(&room[..length], words);
        assert_eq!(from.ip(), IpAddr::from(Ipv4Addr::LOCALHOST)); // the gateway's own
    };
    let mut first = open(&mut client, &target).await;
    received(&mut first, b"to the first answer").await;
    refused(&gateway, &target, 403, "destination_ip_prohibited", "special").await;
    // Of several addresses the private one is left out.
    received(&mut open(&mut client, &target).await, b"to the other one").await;
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    // An open stream keeps its address.
    received(&mut first, b"still there").await;
    assert!(private.try_recv(&mut [0; 64]).is_err(), "a datagram reached the private address");
}

/// The median time of 200 echoes.
async fn median(mut echo: impl AsyncFnMut(u8)) -> Duration {
    let mut times = Vec::new();
    for round in 0..200 {
        let began = Instant::now();
        echo(round).await;
        times.push(began.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

/// Datagrams come for clients that read none of them: they fill what is kept for them, and stop no other stream of their connection.
/// The time that an echo takes is printed, for a quiet machine.
#[tokio::test]
async fn beside_64_stalled_streams_another_one_and_a_tunnel_answer() {
    const STALLED: usize = 64;
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    let mut client = wide(&gateway).await;
    let flooding = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let (mut stalled, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..STALLED {
        let mut flow = open(&mut client, flooding.local_addr().unwrap()).await;
        flow.send(b"flood me").await;
        flooded.push(timeout(PATIENCE, flooding.recv_from(&mut [0; 16])).await.unwrap().unwrap().1);
        stalled.push(flow);
    }
    // More than a window (64 KiB here), a queue (128 KiB), a burst (64 KiB) and the kernel's buffer for each.
    for _ in 0..500 {
        for to in &flooded {
            let _ = flooding.send_to(&[7; 1200], to).await; // what the kernel does not take is lost
        }
        tokio::task::yield_now().await;
    }
    let mut healthy = open(&mut client, target).await;
    let mut tunnel = client.tunnel(Echo::start().await.address).await;
    let flood = tokio::spawn(async move {
        loop {
            for to in &flooded {
                let _ = flooding.send_to(&[7; 1200], to).await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let over_udp = median(async |round| healthy.echo(&[round; 100]).await).await;
    let over_tcp = median(async |round| tunnel.echo(&[round; 100]).await).await;
    println!("beside {STALLED} stalled streams: {over_udp:?} over UDP, {over_tcp:?} over TCP");
    flood.abort();
    drop(stalled);
}

/// A client that sends without end to a target that takes nothing: UDP has no back pressure, and the kernel drops.
#[tokio::test]
async fn a_flood_from_a_client_stops_no_other_stream() {
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    let deaf = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut client = wide(&gateway).await;
    let mut flood = open(&mut client, deaf.local_addr().unwrap()).await;
    let mut healthy = open(&mut client, target).await;
    let burst = capsule(&[7; 1200]).repeat(50);
    for _ in 0..200 {
        flood.tunnel.send(&burst).await.unwrap();
        healthy.echo(b"healthy").await;
    }
    drop(flood);
    healthy.echo(b"healthy").await;
}

#[tokio::test]
async fn a_stream_goes_no_faster_than_its_rate_and_lives_no_longer_than_a_tunnel() {
    let (target, change) = (echo().await, |config: &mut Config| {
        any_port(config);
        config.limits.tunnel_rate = Some(postern_config::Size::kib(64));
    });
    let gateway = Running::start_with(change).await;
    let mut flow = open(&mut Http2::connect(gateway.address).await, target).await;
    let (began, datagram) = (Instant::now(), [7; 1024]);
    for _ in 0..192 {
        flow.echo(&datagram).await; // the first 64 KiB pass at once
    }
    assert!(began.elapsed() >= Duration::from_millis(1900), "{:?}", began.elapsed());

    let gateway = Running::start_with(|config| {
        any_port(config);
        config.limits.tunnel_lifetime = Some(ConfigDuration::millis(500));
    });
    let gateway = gateway.await;
    let mut client = Http2::connect(gateway.address).await;
    let began = Instant::now(); // before the stream's life does
    let mut flow = open(&mut client, target).await;
    while flow.tunnel.send(&capsule(b"busy")).await.is_ok() && matches!(flow.tunnel.next().await, Some(Ok(_)))
    {
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(began.elapsed() >= Duration::from_millis(450), "{:?}", began.elapsed());
    open(&mut client, target).await.echo(b"another").await;
}

/// A token for UDP opens no more than one target: what follows on the connection of HTTP/1.1 is a capsule and no request.
#[tokio::test]
async fn a_stream_of_http1_is_never_read_as_a_request_again() {
    let (gateway, target) = (Running::start_with(any_port).await, echo().await);
    let mut client = Client::connect(gateway.address).await;
    client.send(upgrade(target, &paid())).await;
    assert_eq!(client.head().await.status, 101);
    // As capsules: an unknown type ("C"), which is skipped as far as its length ("O") says.
    client.send(connect(target)).await;
    let rest = timeout(Duration::from_millis(300), client.take(1)).await;
    assert!(rest.is_err(), "it was answered: {rest:?}");
}
