//! A broken request behind good ones: each good one is answered whole, then the broken one in our own words, once.

use crate::support::client::Client;
use crate::support::target::Held;
use crate::support::{ISSUER, PATIENCE, Running};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const LARGE: usize = 12 << 20;

/// The target's side of one request: reads its head, sends a large answer.
async fn answer_largely(target: &mut Held) {
    let mut far = target.next().await;
    far.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
    far.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes()).await.unwrap();
    far.write_all(&vec![b'x'; LARGE]).await.unwrap();
    // Until the gateway ends it: closing with bytes unread would reset the connection.
    let _ = far.read_to_end(&mut Vec::new()).await;
}

/// The target answers an upload before it has come, and what is left of the connection is given up after that.
#[tokio::test]
async fn the_last_answer_of_a_connection_arrives_whole_however_slowly_it_is_read() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    let head = format!(
        "POST http://{}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nProxy-Authorization: {}\r\n\r\n",
        target.address,
        ISSUER.authorization()
    );
    let mut client = Client::connect(gateway.address).await;
    client.send(head).await;
    let reading = async {
        client.head().await;
        let mut got = 0;
        while got < LARGE {
            let part = client.take((LARGE - got).min(1 << 16)).await;
            got += part.len();
            tokio::time::sleep(Duration::from_micros(200)).await; // always behind the target
        }
        client.closed_silently().await;
    };
    timeout(PATIENCE, async { tokio::join!(answer_largely(&mut target), reading) }).await.unwrap();
}

#[tokio::test]
async fn a_broken_request_behind_a_large_answer_cuts_nothing_and_is_answered_once() {
    let (gateway, mut target) = (Running::start().await, Held::start().await);
    for (method, length, body) in [("GET", 0, ""), ("POST", 4, "body"), ("POST", 4, "bo")] {
        let head = format!(
            "{method} http://{}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nProxy-Authorization: {}\r\n\r\n",
            target.address,
            ISSUER.authorization()
        );
        // A wide one could hold the whole answer, which ends the connection of an upload that has not come by then.
        let mut client = Client::connect_narrow(gateway.address).await;
        client.send(format!("{head}{body}")).await;
        let late = &"body"[body.len().min(length)..length];
        let reading = async {
            // The answer is on its way, and the client does not read it yet: the gateway's buffers are full.
            client.head().await;
            client.send(format!("{late}\0broken\r\n\r\n")).await;
            let whole = client.take(LARGE).await;
            assert!(whole.iter().all(|&byte| byte == b'x'));
            client.answer().await.assert_refused(400, "http_request_error", "not valid HTTP/1.1");
            client.closed_silently().await;
        };
        timeout(PATIENCE, async { tokio::join!(answer_largely(&mut target), reading) }).await.unwrap();
    }
}
