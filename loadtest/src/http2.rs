//! Tunnels, of TCP and UDP, as streams of HTTP/2 connections. A separate thread drives the connections; a tunnel blocks like a socket.

use crate::target::PATIENCE;
use crate::tls;
use anyhow::{Context, Result, ensure};
use bytes::{Buf, Bytes};
use h2::client::{self, SendRequest};
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderValue, Method, Request, StatusCode};
use parking_lot::Mutex;
use rustls::ClientConfig;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// HTTP/2 settings of Postern's agent: no proxy waits for a window, and each may send frames of 64 KiB.
const STREAM_WINDOW: u32 = 512 << 10;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const FRAME: u32 = 64 << 10;

/// Connections that carry tunnels in turn. Each connection is made for its first tunnel.
pub(crate) struct Connections {
    proxy: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
    made: Vec<Mutex<Option<SendRequest<Bytes>>>>,
    resets: bool,
    is_udp: bool,
    /// Number of streams that the proxy has not ended.
    open: Arc<AtomicUsize>,
    runtime: Runtime,
}

impl Connections {
    /// Creates a pool of `count` connections. Its tunnels close with a reset if `resets` is set, and carry UDP if `is_udp` is.
    pub(crate) fn new(
        proxy: SocketAddr,
        tls: Option<Arc<ClientConfig>>,
        count: usize,
        (resets, is_udp): (bool, bool),
    ) -> Result<Self> {
        ensure!(count > 0, "tunnels need a connection");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let made = (0..count).map(|_| Mutex::default()).collect();
        Ok(Self { proxy, tls, made, resets, is_udp, open: Arc::default(), runtime })
    }

    /// Opens the tunnel `number`.
    pub(crate) fn open(&self, number: usize, target: SocketAddr, authorization: &str) -> Result<Stream> {
        let mut authorization = HeaderValue::from_str(authorization)?;
        authorization.set_sensitive(true); // as agents and browsers do: not stored in the HPACK table
        let request = Request::builder().method(Method::CONNECT);
        let request = if self.is_udp {
            let path = format!("/.well-known/masque/udp/{}/{}/", target.ip(), target.port());
            let request = request.uri(format!("https://localhost{path}")).header("capsule-protocol", "?1");
            request.extension(Protocol::from_static("connect-udp"))
        } else {
            request.uri(target.to_string())
        };
        let request = request.header(PROXY_AUTHORIZATION, authorization).body(())?;
        let connection = self.connection(number % self.made.len())?;
        let opening = async {
            let (answer, outbox) = connection.ready().await?.send_request(request, false)?;
            let (head, inbox) = answer.await?.into_parts();
            ensure!(head.status == StatusCode::OK, "the proxy answered {}", head.status);
            Ok((outbox, inbox))
        };
        let opened = self.runtime.block_on(async { timeout(PATIENCE, opening).await });
        let (outbox, inbox) = opened.context("the proxy does not answer")??;
        let (resets, runtime) = (self.resets, self.runtime.handle().clone());
        let open = (!resets).then(|| Arc::clone(&self.open));
        open.iter().for_each(|open| _ = open.fetch_add(1, Ordering::SeqCst));
        Ok(Stream { outbox, inbox: Some(inbox), unread: Bytes::new(), patience: PATIENCE, open, runtime })
    }

    /// Waits until the proxy has ended every stream, but those that were reset.
    pub(crate) fn wait_until_ended(&self) -> Result<()> {
        let ended = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = self.runtime.block_on(async { timeout(PATIENCE, ended).await });
        ended.context("the proxy does not end a stream that its client has ended")
    }

    fn connection(&self, index: usize) -> Result<SendRequest<Bytes>> {
        let mut made = self.made[index].lock();
        if let Some(connection) = &*made {
            return Ok(connection.clone());
        }
        let connecting = async {
            let connection = self.connect().await?;
            while self.is_udp && !connection.is_extended_connect_protocol_enabled() {
                yield_now().await; // the setting has no event
            }
            Ok::<_, anyhow::Error>(connection)
        };
        let connected = self.runtime.block_on(async { timeout(PATIENCE, connecting).await });
        let connection = connected.context("the proxy allows no UDP over HTTP/2")??;
        Ok(made.insert(connection).clone())
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>> {
        let stream = TcpStream::connect(self.proxy).await.context("the proxy does not accept")?;
        stream.set_nodelay(true)?;
        let Some(config) = &self.tls else { return begin(stream).await };
        let stream = TlsConnector::from(Arc::clone(config)).connect(tls::name()?, stream).await?;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "the proxy does not speak HTTP/2");
        begin(stream).await
    }
}

async fn begin<S>(stream: S) -> Result<SendRequest<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut settings = client::Builder::new();
    settings.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    settings.max_frame_size(FRAME).enable_push(false);
    let (sender, connection) = settings.handshake(stream).await?;
    tokio::spawn(connection); // its streams observe the connection's end
    Ok(sender)
}

/// A tunnel. Dropping it ends the stream; a task waits for the proxy to end its side.
pub(crate) struct Stream {
    outbox: SendStream<Bytes>,
    inbox: Option<RecvStream>,
    unread: Bytes,
    /// Longest wait for bytes.
    patience: Duration,
    /// Counter of open streams; `None` if this one ends with a reset.
    open: Option<Arc<AtomicUsize>>,
    runtime: Handle,
}

impl Stream {
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(inbox) = &mut self.inbox else { return Ok(0) };
        while self.unread.is_empty() {
            let arrived = self.runtime.block_on(async { timeout(self.patience, inbox.data()).await })?;
            match arrived {
                Some(Ok(bytes)) => self.unread = bytes,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.unread.len());
        self.unread.copy_to_slice(&mut buffer[..length]);
        inbox.flow_control().release_capacity(length).map_err(io::Error::other)?;
        Ok(length)
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.outbox.reserve_capacity(buffer.len());
        let room = poll_fn(|cx| self.outbox.poll_capacity(cx));
        let room = self.runtime.block_on(async { timeout(PATIENCE, room).await })?;
        let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        let length = buffer.len().min(room);
        let bytes = Bytes::copy_from_slice(&buffer[..length]);
        self.outbox.send_data(bytes, false).map_err(io::Error::other)?;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return self.outbox.send_reset(Reason::CANCEL) };
        let _ = self.outbox.send_data(Bytes::new(), true); // fails if the proxy ended the stream first
        let Some(mut inbox) = self.inbox.take() else { return };
        self.runtime.spawn(async move {
            while let Some(Ok(_)) = inbox.data().await {}
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}
