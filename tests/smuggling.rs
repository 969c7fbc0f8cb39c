//! Request smuggling across hops: program, agent, first hop, second hop, target. Whatever a program sends, the target gets requests
//! that can be read in one way, each on its own, and no token.

use crate::support::proxy;
use crate::support::up::{Ports, Up, up};
use crate::support::{PATIENCE, target};
use postern_testkit::origin::Origin;
use postern_testkit::strict;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The bytes after `POST URL HTTP/1.1` and a Host field, in one piece; the statuses of all answers; the bodies of the requests
/// that the target gets.
struct Row(&'static str, &'static [u16], &'static [&'static [u8]]);

const ROWS: &[Row] = &[
    Row("Content-Length: 1\r\n\r\nx", &[200], &[b"x"]),
    // Two lengths.
    Row(
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET http://{target}/2 HTTP/1.1\r\n\r\n",
        &[200],
        &[b"x"],
    ),
    Row(
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1\r\nx\r\n0\r\n\r\nGET http://{target}/2 HTTP/1.1\r\n\r\n",
        &[200],
        &[b"x"],
    ),
    Row("Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", &[200], &[b"x"]),
    Row("Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", &[400], &[]),
    Row("Content-Length: 1, 1\r\n\r\nx", &[400], &[]),
    Row("Content-Length: +1\r\n\r\nx", &[400], &[]),
    // Codings.
    Row("Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400], &[]),
    Row("X: y\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", &[200], &[b"x"]),
    Row("X: a\r\n b\r\n\r\n", &[400], &[]),
    // Chunks.
    Row("Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\nX: y\r\n\r\n", &[200], &[b"x"]),
    // The bytes after a body are another request.
    Row(
        "Content-Length: 1\r\n\r\nxPOST http://{target}/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\ny",
        &[200, 200],
        &[b"x", b"y"],
    ),
    Row("Connection: content-length, host\r\nContent-Length: 1\r\n\r\nx", &[200], &[b"x"]),
    Row("Proxy-Authorization: PrivateToken token=\"AAAA\"\r\n\r\n", &[400], &[]), // it is for a gateway
    Row("Proxy-Authorization: Basic QTpC\r\n\r\n", &[200], &[b""]),
    Row("Host: y\r\n\r\n", &[400], &[]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn across_two_hops_each_request_has_one_meaning_or_none() {
    let (home, echo) = (TempDir::new().unwrap(), target::echo().await);
    let mut command = up(&home.path().join("data"), Ports::any());
    command.args(["--open-egress", "--two-hops", "--first-hop", "127.0.0.1:0"]);
    let system = Up::of(command);
    let agent = system.ports.client;
    let mut bystander = proxy::dial(agent).await.unwrap();
    assert_eq!(proxy::connect(&mut bystander, &echo.to_string(), None).await.unwrap().status, 200);
    for Row(rest, statuses, bodies) in ROWS {
        let mut origin = Origin::start().await;
        let sent = format!("POST http://{{target}}/1 HTTP/1.1\r\nHost: x\r\n{rest}");
        let sent = sent.replace("{target}", &origin.address.to_string());
        let mut stream = TcpStream::connect(agent).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut said)).await.unwrap();
        assert!(read.is_ok() || !said.is_empty(), "{rest:?}: {read:?}");
        drop(stream);
        let said = String::from_utf8_lossy(&said);
        let found: Vec<u16> = said
            .split("HTTP/1.1 ")
            .skip(1)
            .filter_map(|answer| answer.split(' ').next()?.parse().ok())
            .collect();
        assert_eq!(found, *statuses, "{rest:?}: {said}");
        let seen = origin.seen().await;
        let texts: Vec<_> = seen.iter().map(|got| String::from_utf8_lossy(got)).collect();
        let (requests, fault) = strict::requests(&seen.concat());
        assert_eq!(fault, None, "{rest:?}: {texts:?}");
        assert_eq!(
            requests.iter().map(|request| &request.body[..]).collect::<Vec<_>>(),
            *bodies,
            "{rest:?}: {texts:?}"
        );
        assert!(!texts.concat().to_lowercase().contains("proxy-auth"), "{rest:?}: {texts:?}");
        proxy::echoes(&mut bystander, b"mine").await.unwrap();
    }
    drop(bystander);
    system.terminate().assert_stopped();
}
