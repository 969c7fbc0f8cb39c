//! HTTP/2 connections to a proxy, each shared by several tunnels.
//!
//! A connection takes no further tunnel once it carries as many as it may, is as old as it may be, or has ended. What it
//! carries goes on. One that carries nothing is closed after a while.

use super::Tunnel;
use super::answer::{Head, HeadError, INTERIM_LIMIT};
use super::line::{Failure, Io, Line, Received, Taken};
use super::request::Connect;
use crate::http2::{
    CONNECTION_WINDOW, FRAME, FRAME_BUDGET, Http2Stream, Inbox, SEND_QUEUE, STREAM_WINDOW, Turns, Unpaid,
};
use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use http::header::{HeaderMap, PROXY_AUTHORIZATION};
use http::{HeaderValue, Method, Request, Version};
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use std::fmt;
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

/// The largest head of an answer, in bytes as RFC 9113, section 6.5.2, reckons.
const HEAD_LIMIT: u32 = 32 << 10;
/// How tunnels share connections.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// The most tunnels at once on one connection.
    pub tunnels: usize,
    /// For how long a connection takes tunnels.
    pub lifetime: Duration,
    /// How long a connection stays open that carries nothing.
    pub idle: Duration,
    /// With its stop connections end.
    pub shutdown: Shutdown,
    /// What its drain means for them.
    pub on_drain: OnDrain,
}

/// What the drain of a process means for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrain {
    /// They take no more tunnels, and the drain waits for them.
    Retire,
    /// They take tunnels to the stop, for requests that came before; the drain waits for the tunnels alone.
    Serve,
}

/// The connections to one proxy.
pub struct Lines {
    sharing: Sharing,
    open: Mutex<Vec<Arc<Line>>>,
    /// Whoever needs a connection waits for one that is being made: it has room for several.
    making: tokio::sync::Mutex<()>,
    /// The proxy chose HTTP/1.1 last.
    speaks_http1: AtomicBool,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("sharing", &self.sharing).finish_non_exhaustive()
    }
}

/// A new connection.
pub struct Made {
    /// Its bytes.
    pub io: Box<dyn Io>,
    /// To be kept taking by the task that reads it.
    pub received: Received,
    /// What the proxy chose.
    pub is_http2: bool,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("is_http2", &self.is_http2).finish_non_exhaustive()
    }
}

/// What a new connection turned out to be.
pub enum Joined {
    /// It speaks HTTP/1.1, and carries one tunnel.
    Alone(Box<dyn Io>, Received),
    /// It is shared.
    Shared(Seat),
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone(..) => "Alone",
            Self::Shared(_) => "Shared",
        })
    }
}

impl Lines {
    /// Without a connection yet.
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        let (open, making) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { sharing, open, making, speaks_http1: AtomicBool::default() }
    }

    /// Room on a connection that is open, or on the one that `connect` makes.
    ///
    /// # Errors
    /// Those of `connect`, and of the new connection where it breaks before its proxy gave a sign of life.
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
                making = None; // learnt meanwhile: all may connect at once
            }
        }
        let Made { io, received, is_http2 } = connect.await?;
        self.speaks_http1.store(!is_http2, Ordering::Relaxed);
        if !is_http2 {
            return Ok(Joined::Alone(io, received));
        }
        let line = self.begin(io, received).await?;
        // Behind its first sign of life it is known how many tunnels the proxy allows, and that it speaks HTTP/2 indeed.
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

    /// Room on a connection that is open and answers. After one that does not, a new one is worth more than another wait.
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

/// All clients' are alike: a gateway cannot tell one agent from another by them.
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

/// Reads and writes a connection to its end.
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

/// Room for a tunnel on a connection.
pub struct Seat {
    line: Arc<Line>,
    sender: SendRequest<Bytes>,
    taken: Taken,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}

/// Whether the proxy of a connection is there, while a tunnel on it is waited for.
pub struct Vigil(Arc<Line>);

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vigil")
    }
}

impl Vigil {
    /// Whether the proxy is there, if it was not heard a moment ago. A connection that does not answer takes no more tunnels.
    pub async fn answers(&self) -> bool {
        let answers = self.0.answers().await;
        if !answers {
            self.0.retire();
        }
        answers
    }

    /// Returns when the connection gives no sign of life; looks each time that `pause` is over.
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
    fn on(line: &Arc<Line>, most: usize) -> Option<Self> {
        let sender = line.sender.lock().clone()?;
        let taken = Taken::on(line, most.min(sender.current_max_send_streams()))?;
        Some(Self { line: Arc::clone(line), sender, taken })
    }

    /// To find out meanwhile whether an answer can come.
    #[must_use]
    pub fn vigil(&self) -> Vigil {
        Vigil(Arc::clone(&self.line))
    }

    /// Asks for a tunnel. An answer that opens none is followed by its body.
    ///
    /// # Errors
    /// When there is no answer.
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
    let Connect { authority, authorization, more } = connect;
    let mut request = Request::builder().version(Version::HTTP_2).method(Method::CONNECT).uri(*authority);
    if let Some(authorization) = authorization {
        let mut value = HeaderValue::from_str(authorization)?;
        value.set_sensitive(true); // no table of either end remembers it (RFC 7541, section 7.1.3)
        request = request.header(PROXY_AUTHORIZATION, value);
    }
    if let Some((name, value)) = more {
        request = request.header(name, *value);
    }
    request.body(())
}

/// The answer, after some interim ones.
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

/// As RFC 9113, section 6.5.2, reckons, with 32 bytes for the status, too.
fn size(headers: &HeaderMap) -> usize {
    32 + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>()
}
