//! HTTP/2 connections to a proxy, each shared by several tunnels.
//!
//! A connection takes no further tunnel once it carries as many as it may, is as old as it may be, or has ended. What it
//! carries goes on. One that carries nothing is closed after a while.

use super::failure::Failure;
use super::seat::Seat;
use super::{Io, Received};
use crate::http2::{CONNECTION_WINDOW, FRAME, FRAME_BUDGET, SEND_QUEUE, STREAM_WINDOW, Turns, Unpaid};
use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// The largest head of an answer, in bytes as RFC 9113, section 6.5.2, reckons.
const HEAD_LIMIT: u32 = 32 << 10;
/// A connection that was silent for this long is asked for a sign of life before a token goes there.
const SILENT: Duration = Duration::from_secs(1);
/// How long it may take to give it.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

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

/// A connection.
pub(super) struct Line {
    /// `None` once it takes no more tunnels.
    sender: Mutex<Option<SendRequest<Bytes>>>,
    /// Why it broke.
    failure: Failure,
    ping: tokio::sync::Mutex<PingPong>,
    /// When its proxy last gave a sign of life; `None` before the first.
    heard: Mutex<Option<Instant>>,
    began: Instant,
    tunnels: AtomicUsize,
    /// The one that carries it, where that is another hop's. Nothing of the tunnel on it: that ends with this connection.
    carrier: Option<Arc<Line>>,
    /// The number of tunnels has changed.
    changed: Notify,
}

/// Counts as a tunnel for as long as it lives.
pub(super) struct Taken(Arc<Line>);

impl Taken {
    pub(super) fn line(&self) -> Arc<Line> {
        Arc::clone(&self.0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
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
        let seat = line.take(self.sharing.tunnels);
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
            if let Some(seat) = line.take(self.sharing.tunnels) {
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

impl Line {
    /// Whether it takes tunnels, if it has room.
    fn is_open(&self, lifetime: Duration) -> bool {
        if self.began.elapsed() >= lifetime
            || self.carrier.as_ref().is_some_and(|carrier| carrier.is_leaving())
        {
            self.retire();
        }
        self.sender.lock().is_some()
    }

    /// Whether it takes no more tunnels, by its age or because its proxy goes away.
    fn is_leaving(&self) -> bool {
        let sender = self.sender.lock().clone();
        let ready =
            |mut sender: SendRequest<Bytes>| sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        sender.is_none_or(|sender| matches!(ready(sender), Poll::Ready(Err(_))))
    }

    fn has_room(&self, most: usize) -> bool {
        let allowed = self.sender.lock().as_ref().map_or(0, SendRequest::current_max_send_streams);
        self.tunnels.load(Ordering::Acquire) < most.min(allowed)
    }

    /// Takes no more tunnels; without any, it ends.
    pub(super) fn retire(&self) {
        *self.sender.lock() = None;
        self.changed.notify_one();
    }

    fn take(self: &Arc<Self>, most: usize) -> Option<Seat> {
        let sender = self.sender.lock().clone()?;
        let allowed = most.min(sender.current_max_send_streams());
        let more = |tunnels| (tunnels < allowed).then_some(tunnels + 1);
        self.tunnels.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let taken = Taken(Arc::clone(self));
        Some(Seat { line: Arc::clone(self), sender, taken })
    }

    /// Whether its proxy is there: a token that is sent into a dead connection is lost.
    pub(super) async fn answers(&self) -> bool {
        if self.is_leaving() {
            return false;
        }
        if self.was_heard() {
            return true;
        }
        let mut ping = self.ping.lock().await;
        // Whoever waited for the same has the answer already.
        if self.sender.lock().is_none() {
            return false;
        }
        if self.was_heard() {
            return true;
        }
        // One that was not waited for may have come long ago, and says nothing of now.
        poll_fn(|cx| Poll::Ready(ping.poll_pong(cx).is_ready())).await;
        let _ = ping.send_ping(Ping::opaque()); // one that is on its way does as well
        let answered = timeout(SIGN_OF_LIFE, poll_fn(|cx| ping.poll_pong(cx))).await;
        let answers = matches!(answered, Ok(Ok(_)));
        if answers {
            self.hear();
        }
        answers
    }

    pub(super) fn hear(&self) {
        *self.heard.lock() = Some(Instant::now());
    }

    fn was_heard(&self) -> bool {
        self.heard.lock().is_some_and(|heard| heard.elapsed() < SILENT)
    }

    /// Returns when it has carried nothing for this long.
    async fn idle(&self, limit: Duration) {
        loop {
            let changed = self.changed.notified();
            if self.tunnels.load(Ordering::Acquire) > 0 {
                changed.await;
            } else if timeout(limit, changed).await.is_err() && self.tunnels.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}
