//! The same through a proxy of the operator's: it gets one CONNECT, and the target what it would have got without it.

use super::http1;
use crate::support::Running;
use crate::support::client::{Client, connect};
use crate::support::target::{Echo, read_head};
use postern_gateway::config::Egress;
use std::net::SocketAddr;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// A proxy that opens every tunnel, and answers in these words.
async fn proxy(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let head = read_head(&mut near).await?;
                let target = head.split(' ').nth(1).unwrap_or_default();
                assert_eq!(head, format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"));
                let mut far = TcpStream::connect(target).await?;
                near.write_all(answer.as_bytes()).await?;
                copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    address
}

async fn gateway(answer: &'static str) -> Running {
    let hop = proxy(answer).await;
    let text = format!(
        "private = true\nports = \"any\"\n[[next_hops]]\nname = \"a\"\nurls = [\"http://{hop}\"]\n\
         [[rules]]\nallow = [\"127.0.0.0/8\"]\nvia = \"a\"\n"
    );
    let egress: Egress = postern_config::parse("egress.toml", &text, []).unwrap();
    Running::start_with(|config| config.egress = egress).await
}

#[tokio::test]
async fn each_request_has_one_meaning_or_none_at_the_next_hop_too() {
    http1::run(&gateway("HTTP/1.1 200 OK\r\n\r\n").await).await;
}

/// Framing means nothing in an answer that opens a tunnel (RFC 9110, section 9.3.6), and nothing of the answer's head reaches the
/// client.
#[tokio::test]
async fn what_a_next_hop_answers_is_no_answer_to_the_client() {
    let echo = Echo::start().await;
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", 200),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Hop: 1\r\n\r\n", 200),
        ("HTTP/1.1 103 Early\r\nContent-Length: 4\r\n\r\nHTTP/1.1 200 OK\r\nX-Hop: 1\r\n\r\n", 200),
        ("HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\nX-Hop: 1\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nX : a\r\n\r\n", 502),
        ("HTTP/1.1 200 OK\r\nX: a\rX-Hop: 1\r\n\r\n", 502),
        ("ok", 502),
    ] {
        let gateway = gateway(answer).await;
        let mut client = Client::connect(gateway.address).await;
        client.send(connect(echo.address)).await;
        let head = client.head().await;
        assert_eq!(head.status, status, "{answer:?}");
        for of_hop in ["x-hop", "transfer-encoding"] {
            assert!(head.all(of_hop).is_empty(), "{head:?}");
        }
        if status == 200 {
            client.send("through").await;
            assert_eq!(client.take(7).await, b"through", "{answer:?}");
        }
    }
}
