//! One connection to a proxy that tunnels share.

use crate::http2::{Inbox, Unsent};
use crate::reset::Reset;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use parking_lot::Mutex;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A connection that was silent for this long is asked for a sign of life before a token goes there.
const SILENT: Duration = Duration::from_secs(1);
/// How long it may take to give it.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// What a connection to a proxy can do, plain or TLS, and what a tunnel can that leads to the next one.
pub trait Io: AsyncRead + AsyncWrite + Reset + Unsent + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Reset + Unsent + Send + Unpin> Io for T {}

/// A connection.
pub(super) struct Line {
    /// `None` once it takes no more tunnels.
    pub(super) sender: Mutex<Option<SendRequest<Bytes>>>,
    /// Why it broke.
    pub(super) failure: Failure,
    pub(super) ping: tokio::sync::Mutex<PingPong>,
    /// When its proxy last gave a sign of life; `None` before the first.
    pub(super) heard: Mutex<Option<Instant>>,
    pub(super) began: Instant,
    pub(super) tunnels: AtomicUsize,
    /// The one that carries it, where that is another hop's. Nothing of the tunnel on it: that ends with this connection.
    pub(super) carrier: Option<Arc<Line>>,
    /// The number of tunnels has changed.
    pub(super) changed: Notify,
}

/// Counts as a tunnel for as long as it lives.
pub(super) struct Taken(Arc<Line>);

impl Taken {
    /// Where there is room: on a line with fewer tunnels than `most`.
    pub(super) fn on(line: &Arc<Line>, most: usize) -> Option<Self> {
        let more = |tunnels| (tunnels < most).then_some(tunnels + 1);
        line.tunnels.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(line)))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

/// What a tunnel on a shared connection has received and not read; nothing where it has a connection of its own. One in another
/// that is shared has that one's.
#[derive(Clone, Default)]
pub struct Received(Option<(Inbox, Arc<Line>)>);

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Received")
    }
}

impl Received {
    pub(super) fn shared(inbox: Inbox, taken: &Taken) -> Self {
        Self(Some((inbox, Arc::clone(&taken.0))))
    }

    /// Runs `work`, which reads the tunnel or will; meanwhile the tunnel stops no other one of its connection.
    pub async fn keep_taking<F: Future>(&self, work: F) -> F::Output {
        match &self.0 {
            Some((inbox, _)) => inbox.keep_taking(work).await,
            None => work.await,
        }
    }

    /// The connection it comes over.
    pub(super) fn carrier(&self) -> Option<Arc<Line>> {
        self.0.as_ref().map(|(_, line)| Arc::clone(line))
    }
}

impl Line {
    /// Whether it takes tunnels, if it has room.
    pub(super) fn is_open(&self, lifetime: Duration) -> bool {
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

    pub(super) fn has_room(&self, most: usize) -> bool {
        let allowed = self.sender.lock().as_ref().map_or(0, SendRequest::current_max_send_streams);
        self.tunnels.load(Ordering::Acquire) < most.min(allowed)
    }

    /// Takes no more tunnels; without any, it ends.
    pub(super) fn retire(&self) {
        *self.sender.lock() = None;
        self.changed.notify_one();
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
    pub(super) async fn idle(&self, limit: Duration) {
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

/// The error that a stream's reads ended with: h2 hands on its text, and what TLS says of it needs its type.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<io::Error>>>);

impl Failure {
    pub(super) fn of<S>(&self, stream: S) -> Kept<S> {
        Kept { stream, failure: self.clone() }
    }

    /// Once.
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().take()
    }
}

/// A stream whose error is kept.
pub(super) struct Kept<S> {
    stream: S,
    failure: Failure,
}

impl<S: AsyncRead + Unpin> AsyncRead for Kept<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer).map_err(|error| {
            let handed_on = io::Error::new(error.kind(), error.to_string());
            *self.failure.0.lock() = Some(error);
            handed_on
        })
    }
}

postern_daemon::writes_through!(Kept);
