//! HTTP/2 connections to a proxy, each shared by several tunnels.
//!
//! A connection accepts no further tunnel once it has reached its number of tunnels or its age, or has ended. Its tunnels
//! continue. A connection without tunnels is closed after a while.

use super::answer::{Head, HeadError, INTERIM_LIMIT};
use super::line::{Failure, Io, Line, Received, Taken};
use super::{Connect, Tunnel};
use crate::http2::{
    CONNECTION_WINDOW, FRAME, FRAME_BUDGET, Http2Stream, Inbox, SEND_QUEUE, STREAM_WINDOW, Turns, Unpaid,
};
use crate::udp::{CAPSULE_PROTOCOL, CAPSULES, PROTOCOL};
use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::ext::Protocol;
use http::header::{HeaderMap, PROXY_AUTHORIZATION};
use http::{HeaderValue, Method, Request, Version};
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// Largest head of an answer, in bytes as counted by RFC 9113, section 6.5.2.
const HEAD_LIMIT: u32 = 32 << 10;
/// Rules by which tunnels share connections.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Maximum number of concurrent tunnels on one connection.
    pub tunnels: usize,
    /// Time for which a connection accepts tunnels.
    pub lifetime: Duration,
    /// Time until a connection without tunnels is closed.
    pub idle: Duration,
    /// Shutdown of the process: connections end when it stops.
    pub shutdown: Shutdown,
    pub on_drain: OnDrain,
}

/// Effect of a process's drain on its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrain {
    /// They accept no more tunnels, and the drain waits for them.
    Retire,
    /// They accept tunnels until the stop, for requests that came before; the drain waits only for the tunnels.
    Serve,
}

pub struct Lines {
    sharing: Sharing,
    open: Mutex<Vec<Arc<Line>>>,
    /// Held while a connection is made: other callers wait for that connection, because it has room for several.
    making: tokio::sync::Mutex<()>,
    /// `true` if the proxy chose HTTP/1.1 on the last connection.
    speaks_http1: AtomicBool,
}

pub struct Made {
    /// Byte stream of the connection.
    pub io: Box<dyn Io>,
    /// Received data that the task which reads the connection must keep taking.
    pub received: Received,
    /// `true` if the proxy chose HTTP/2.
    pub is_http2: bool,
}

/// The kind of a connection that was joined.
pub enum Joined {
    /// A connection with HTTP/1.1, which carries one tunnel.
    Alone(Box<dyn Io>, Received),
    Shared(Seat),
}

impl Lines {
    /// Creates a set without connections.
    pub fn new(sharing: Sharing) -> Self {
        let (open, making) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { sharing, open, making, speaks_http1: AtomicBool::default() }
    }

    /// Returns a place on an open connection, or on the one that `connect` makes.
    ///
    /// # Errors
    /// Those of `connect`, and of a new connection that breaks before its proxy answers the first ping.
    pub async fn join<E: From<io::Error>>(
        &self,
        connect: impl Future<Output = Result<Made, E>>,
    ) -> Result<Joined, E> {
        let mut making = None;
        if !self.speaks_http1.load(Ordering::Relaxed) {
            if let Some(seat) = self.seat().await {
                return Ok(Joined::Shared(seat));
            }
            making = Some(self.making.lock().await);
            if let Some(seat) = self.seat().await {
                return Ok(Joined::Shared(seat));
            }
            if self.speaks_http1.load(Ordering::Relaxed) {
                making = None; // another caller found out: all may connect at once
            }
        }
        let Made { io, received, is_http2 } = connect.await?;
        self.speaks_http1.store(!is_http2, Ordering::Relaxed);
        if !is_http2 {
            return Ok(Joined::Alone(io, received));
        }
        let line = self.begin(io, received).await?;
        // The answer to the first ping shows that the proxy speaks HTTP/2, and arrives after its limit on the number of tunnels.
        if !line.answers().await {
            line.retire();
            let failure = line.failure.take();
            return Err(failure.unwrap_or_else(|| io::ErrorKind::ConnectionAborted.into()).into());
        }
        let seat = Seat::on(&line, self.sharing.tunnels);
        let seat = seat.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
        self.open.lock().push(line);
        drop(making);
        Ok(Joined::Shared(seat))
    }

    /// Returns a place on an open connection that answers. After one that does not, a new connection is better than another wait.
    async fn seat(&self) -> Option<Seat> {
        loop {
            let line = {
                let mut open = self.open.lock();
                open.retain(|line| line.is_open(self.sharing.lifetime));
                let has_room = |line: &&Arc<Line>| line.has_room(self.sharing.tunnels);
                open.iter().find(has_room).map(Arc::clone)?
            };
            if !line.answers().await {
                line.retire();
                return None;
            }
            if let Some(seat) = Seat::on(&line, self.sharing.tunnels) {
                return Some(seat);
            }
        }
    }

    async fn begin(&self, io: Box<dyn Io>, received: Received) -> io::Result<Arc<Line>> {
        let failure = Failure::default();
        let stream = Turns::new(failure.of(io), Unpaid::lifted());
        let (sender, mut connection) = settings().handshake(stream).await.map_err(io::Error::other)?;
        let ping = connection.ping_pong().ok_or(io::ErrorKind::Unsupported)?;
        let line = Arc::new(Line {
            sender: Mutex::new(Some(sender)),
            failure,
            ping: tokio::sync::Mutex::new(ping),
            heard: Mutex::default(),
            began: Instant::now(),
            tunnels: AtomicUsize::default(),
            carrier: received.carrier(),
            changed: Notify::new(),
        });
        let task = {
            let (line, sharing) = (Arc::clone(&line), self.sharing.clone());
            async move {
                let driving = drive(connection, line, &sharing);
                sharing.shutdown.until_stopped(received.keep_taking(driving)).await
            }
        };
        match self.sharing.on_drain {
            OnDrain::Retire => drop(self.sharing.shutdown.tracker().spawn(task)),
            OnDrain::Serve => drop(tokio::spawn(task)),
        }
        Ok(line)
    }
}

impl Drop for Lines {
    /// Retires the connections, which no one can find any more: each ends with its last tunnel.
    fn drop(&mut self) {
        self.open.get_mut().iter().for_each(|line| line.retire());
    }
}

/// Returns the settings, which are the same for all clients: a gateway cannot distinguish agents by them.
fn settings() -> Builder {
    let mut settings = Builder::new();
    settings
        .enable_push(false)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(HEAD_LIMIT)
        .max_send_buffer_size(SEND_QUEUE)
        .data_frame_budget(FRAME_BUDGET);
    settings
}

/// Drives a connection to its end, and retires it when it is idle or the process drains.
async fn drive<S>(connection: Connection<S, Bytes>, line: Arc<Line>, sharing: &Sharing)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut connection, mut draining) = (pin!(connection), pin!(sharing.shutdown.draining()));
    while line.sender.lock().is_some() {
        tokio::select! {
            _ = &mut connection => return line.retire(),
            () = line.idle(sharing.idle) => line.retire(),
            () = &mut draining, if sharing.on_drain == OnDrain::Retire => line.retire(),
        }
    }
    let _ = connection.await; // its end reaches the tunnels
}

/// A place for a tunnel on a connection.
pub struct Seat {
    line: Arc<Line>,
    sender: SendRequest<Bytes>,
    taken: Taken,
}

/// Liveness check of a connection while a tunnel on it is awaited.
pub struct Vigil(Arc<Line>);

impl Vigil {
    /// Returns `true` if the proxy responds, or did a moment ago. A connection that does not respond accepts no more tunnels.
    pub async fn answers(&self) -> bool {
        let answers = self.0.answers().await;
        if !answers {
            self.0.retire();
        }
        answers
    }

    /// Returns when the connection does not respond; checks after each `pause`.
    pub async fn lost(&self, pause: Duration) {
        loop {
            sleep(pause).await;
            if !self.answers().await {
                return;
            }
        }
    }
}

impl Seat {
    /// Returns `true` if the proxy accepts requests for UDP: its SETTINGS allow an extended CONNECT (RFC 8441, section 3).
    pub fn carries_udp(&self) -> bool {
        self.sender.is_extended_connect_protocol_enabled()
    }

    fn on(line: &Arc<Line>, most: usize) -> Option<Self> {
        let sender = line.sender.lock().clone()?;
        let taken = Taken::on(line, most.min(sender.current_max_send_streams()))?;
        Some(Self { line: Arc::clone(line), sender, taken })
    }

    /// Returns a check that shows if an answer can still come while it is awaited.
    pub fn vigil(&self) -> Vigil {
        Vigil(Arc::clone(&self.line))
    }

    /// Requests a tunnel. An answer that opens none is followed by its body.
    pub async fn connect(self, connect: &Connect<'_>) -> Result<(Head, Tunnel), HeadError> {
        let Self { line, sender, taken } = self;
        let broken = |error: h2::Error| HeadError::Broken(error.to_string());
        let request = request(connect).map_err(|error| HeadError::Grammar(error.to_string()))?;
        let mut sender = sender.ready().await.map_err(broken)?;
        let (response, outbox) = sender.send_request(request, false).map_err(broken)?;
        let response = answer(response).await?;
        line.hear();
        let (head, body) = response.into_parts();
        let inbox = Inbox::new(body, None);
        let tunnel = Tunnel::shared(Http2Stream::new(inbox.clone(), outbox), inbox, taken);
        Ok((Head { status: head.status, headers: head.headers }, tunnel))
    }
}

fn request(connect: &Connect<'_>) -> http::Result<Request<()>> {
    let Connect { authority, udp, authorization, more } = connect;
    let mut request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT);
    request = match udp {
        None => request.uri(*authority),
        // RFC 9298, section 3.4.
        Some(path) => request
            .uri(format!("https://{authority}{path}"))
            .extension(Protocol::from_static(PROTOCOL))
            .header(CAPSULE_PROTOCOL, CAPSULES),
    };
    if let Some(authorization) = authorization {
        let mut value = HeaderValue::from_str(authorization)?;
        value.set_sensitive(true); // never indexed by either end (RFC 7541, section 7.1.3)
        request = request.header(PROXY_AUTHORIZATION, value);
    }
    if let Some((name, value)) = more {
        request = request.header(name, *value);
    }
    request.body(())
}

/// Returns the answer, after a limited number of interim ones.
async fn answer(mut response: ResponseFuture) -> Result<http::Response<h2::RecvStream>, HeadError> {
    let mut interim = 0;
    poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
            interim += size(head.headers());
            if interim > INTERIM_LIMIT {
                return Poll::Ready(Err(HeadError::NoEnd));
            }
        }
        let answered = pin!(&mut response).poll(cx);
        answered.map(|answered| answered.map_err(|error| HeadError::Broken(error.to_string())))
    })
    .await
}

/// Returns the size of the fields as counted by RFC 9113, section 6.5.2, plus 32 bytes for the status.
fn size(headers: &HeaderMap) -> usize {
    32 + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>()
}
