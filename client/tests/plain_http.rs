//! Plain HTTP through the agent: what a proxy owes, and tunnels that requests share.

use crate::support::gateway::Step;
use crate::support::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// RFC 9110 and 9112, as for the gateway. The agent adds nothing of itself, so its requests look as the client wrote them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_proxy_owes_plain_http() {
    use postern_testkit::dialogue::{self, Proxy, Step};
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (40, 80)).await;
    let proxy = Proxy { address: world.agent.address, admission: String::new };
    let mut rows = dialogue::rows();
    let post = "POST http://{target}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n";
    let posted = "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 4\r\n\r\n";
    let expected = "POST / HTTP/1.1\r\nHost: {target}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let ok = || Step::Say("HTTP/1.1 200 OK\r\nX-mine: 1\r\nContent-Length: 0\r\n\r\n".into());
    rows.push((
        "a client that got no 100 may send its body after the answer, and keeps its connection",
        vec![
            Step::Send(format!("{post}Expect: 100-continue\r\n\r\n")),
            Step::Arrive(expected),
            ok(),
            Step::Get(&["HTTP/1.1 200 "]),
            Step::Send("body".into()),
            Step::Body("body"),
            Step::Send(format!("{post}\r\nbody")),
            Step::Arrive(posted),
            Step::Body("body"),
            ok(),
            Step::Get(&["HTTP/1.1 200 "]),
        ],
    ));
    rows.push((
        "where a target closes as a request comes, the client's connection ends, and it may repeat the request",
        vec![
            Step::Send(format!("{post}\r\nbody")),
            Step::Arrive(posted),
            Step::Body("body"),
            ok(),
            Step::Get(&["HTTP/1.1 200 "]),
            Step::Send(format!("{post}\r\nbody")),
            Step::Arrive(posted),
            Step::End,
            Step::Closed,
        ],
    ));
    dialogue::hold(proxy, rows).await;
    let latin = send(world.agent.address, b"GET http://x.example/\xe9 HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(latin.head.contains("error=http_request_error") && latin.status == 400, "{}", latin.head);
}

/// A web server that answers every request with the request, as often as `per_connection` on one connection.
async fn mirror(per_connection: usize, connections: Arc<AtomicUsize>) -> SocketAddr {
    serve(move |mut stream| {
        connections.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut bytes = Vec::new();
            for _ in 0..per_connection {
                let end = loop {
                    if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                        break end + 4;
                    }
                    if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                        return;
                    }
                };
                let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
                let length =
                    field(&head, "content-length").map_or(0, |value| value.parse::<usize>().unwrap());
                while bytes.len() < end + length {
                    stream.read_buf(&mut bytes).await.unwrap();
                }
                let request: Vec<u8> = bytes.drain(..end + length).collect();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n",
                    request.len()
                );
                stream.write_all(&[head.as_bytes(), &request].concat()).await.unwrap();
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_requests_of_one_connection_share_a_tunnel_and_a_token() {
    let world = World::new().await;
    let connections = Arc::new(AtomicUsize::new(0));
    let target = mirror(usize::MAX, connections.clone()).await;
    world.gateway.then(Step::Spent); // settled before the body is sent, so the body goes out once
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    for number in 0..5 {
        let request = format!(
            "POST http://{target}/path?{number} HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: keep-alive\r\n\
             Proxy-Authorization: Basic eA==\r\nContent-Length: 4\r\n\r\nbody"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = timeout(HANG, answer(stream)).await.unwrap();
        assert_eq!((answer.status, field(&answer.head, "x-hop")), (200, None));
        let seen = answer.body.to_lowercase();
        assert!(seen.starts_with(&format!("post /path?{number} http/1.1\r\n")), "{seen}");
        assert!(
            seen.contains(&format!("\r\nhost: {target}\r\n")) && seen.ends_with("\r\n\r\nbody"),
            "{seen}"
        );
        assert!(!seen.contains("proxy-") && !seen.contains("via") && !seen.contains("elsewhere"), "{seen}");
        stream = answer.stream;
    }
    assert_eq!(world.gateway.tokens().len(), 2);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    assert!(world.gateway.heads().pop().unwrap().starts_with(&format!("CONNECT {target} ")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_closes_between_requests_is_reached_again() {
    let world = World::new().await;
    let connections = Arc::new(AtomicUsize::new(0));
    let target = mirror(1, connections.clone()).await;
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    for number in 1..=10 {
        stream
            .write_all(format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let answer = timeout(HANG, answer(stream)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(connections.load(Ordering::SeqCst), number);
        stream = answer.stream;
    }
    assert_eq!(world.gateway.tokens().len(), 10);
}

/// The target may have seen the request; another tunnel would cost a token, and end in the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_http_on_a_kept_tunnel_buys_no_other_tunnel() {
    let world = World::new().await;
    let target = serve(|mut stream| async move {
        for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "SSH-2.0\r\n\r\n"] {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut head).await.unwrap();
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let mut stream = TcpStream::connect(world.agent.address).await.unwrap();
    for status in [200, 502] {
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = timeout(HANG, answer(stream)).await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.body);
        stream = answer.stream;
    }
    assert_eq!(world.gateway.tokens().len(), 1);
}
