//! Targets of tunnels.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// Sends back what it gets.
pub async fn echo() -> SocketAddr {
    serve(Ipv4Addr::LOCALHOST, echo_on).await
}

/// The same on another loopback address.
pub async fn echo_at(address: Ipv4Addr) -> SocketAddr {
    serve(address, echo_on).await
}

/// The same under TLS.
pub async fn tls_echo(config: Arc<rustls::ServerConfig>) -> SocketAddr {
    let acceptor = TlsAcceptor::from(config);
    serve(Ipv4Addr::LOCALHOST, move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                echo_on(stream).await;
            }
        }
    })
    .await
}

/// The answer of [`web`].
pub const PAGE: &str = "a page";

/// A web server that answers every request with [`PAGE`] and closes.
pub async fn web(address: Ipv4Addr) -> SocketAddr {
    serve(address, |stream| async {
        let mut stream = BufReader::new(stream);
        if !reads_head(&mut stream).await {
            return;
        }
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PAGE}", PAGE.len());
        let _ = stream.write_all(answer.as_bytes()).await; // clients of some tests break off
    })
    .await
}

/// A web server whose answer has no length: `line 0`, `line 1` and so on up to `count` lines, with a pause after each.
/// Only the connection's end shows a client whether it has all of them.
pub async fn lines(count: usize, pause: Duration) -> SocketAddr {
    serve(Ipv4Addr::LOCALHOST, move |stream| async move {
        let mut stream = BufReader::new(stream);
        if !reads_head(&mut stream).await {
            return;
        }
        let mut sent = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
        for line in 0..count {
            if sent.is_err() {
                return; // the client is gone
            }
            sent = stream.write_all(format!("line {line}\n").as_bytes()).await;
            sleep(pause).await;
        }
    })
    .await
}

/// Reads a request's head; whether it came whole.
async fn reads_head(stream: &mut BufReader<TcpStream>) -> bool {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if !matches!(stream.read_line(&mut head).await, Ok(1..)) {
            return false;
        }
    }
    true
}

async fn serve<F>(address: Ipv4Addr, each: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((IpAddr::V4(address), 0)).await.unwrap();
    let local = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    local
}

async fn echo_on<S: AsyncRead + AsyncWrite>(stream: S) {
    let (mut reader, mut writer) = split(stream);
    let _ = copy(&mut reader, &mut writer).await; // clients of some tests break off
    let _ = writer.shutdown().await;
}
