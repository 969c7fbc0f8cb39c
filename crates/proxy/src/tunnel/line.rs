//! One connection to a proxy that tunnels share.

use crate::http2::Inbox;
use crate::reset::Reset;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use parking_lot::Mutex;
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

/// Silence after which a connection must answer a ping before a token is sent on it.
const SILENT: Duration = Duration::from_secs(1);
/// Time limit for the answer to that ping.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// A byte stream to a proxy: a plain or TLS connection, or a tunnel that leads to the next proxy.
pub trait Io: AsyncRead + AsyncWrite + Reset + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Reset + Send + Unpin> Io for T {}

pub(super) struct Line {
    /// `None` once the connection accepts no more tunnels.
    pub(super) sender: Mutex<Option<SendRequest<Bytes>>>,
    pub(super) failure: Failure,
    pub(super) ping: tokio::sync::Mutex<PingPong>,
    /// Time of the proxy's last sign of life; `None` before the first.
    pub(super) heard: Mutex<Option<Instant>>,
    pub(super) began: Instant,
    pub(super) tunnels: AtomicUsize,
    /// The connection that carries this one, if that is another hop's. It is not a reference to the tunnel on it, which ends with
    /// this connection.
    pub(super) carrier: Option<Arc<Line>>,
    /// Notified when the number of tunnels changes or the connection retires.
    pub(super) changed: Notify,
}

/// Guard that counts a tunnel.
pub(super) struct Taken(Arc<Line>);

impl Taken {
    /// Takes a place on a line that has fewer tunnels than `most`.
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

/// Unread data of a tunnel on a shared connection; nothing for a tunnel on a separate one. A connection inside a shared tunnel
/// has that tunnel's.
#[derive(Clone, Default)]
pub struct Received(Option<(Inbox, Arc<Line>)>);

impl Received {
    pub(super) fn shared(inbox: Inbox, taken: &Taken) -> Self {
        Self(Some((inbox, Arc::clone(&taken.0))))
    }

    /// Runs `work`, which reads the tunnel now or later, while the tunnel stops no other one of its connection.
    pub async fn keep_taking<F: Future>(&self, work: F) -> F::Output {
        match &self.0 {
            Some((inbox, _)) => inbox.keep_taking(work).await,
            None => work.await,
        }
    }

    pub(super) fn carrier(&self) -> Option<Arc<Line>> {
        self.0.as_ref().map(|(_, line)| Arc::clone(line))
    }
}

impl Line {
    /// Returns `true` if the connection accepts tunnels, given room. Retires a connection that is too old, or whose carrier is
    /// leaving.
    pub(super) fn is_open(&self, lifetime: Duration) -> bool {
        if self.began.elapsed() >= lifetime
            || self.carrier.as_ref().is_some_and(|carrier| carrier.is_leaving())
        {
            self.retire();
        }
        self.sender.lock().is_some()
    }

    /// Returns `true` if the connection accepts no more tunnels, because of its age or because its proxy is going away.
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

    /// Accepts no more tunnels; the connection ends once it has none.
    pub(super) fn retire(&self) {
        *self.sender.lock() = None;
        self.changed.notify_one();
    }

    /// Returns `true` if the proxy responds: a token that is sent into a dead connection is lost.
    pub(super) async fn answers(&self) -> bool {
        if self.is_leaving() {
            return false;
        }
        if self.was_heard() {
            return true;
        }
        let mut ping = self.ping.lock().await;
        // Another caller may have got the result while this one waited for the lock.
        if self.sender.lock().is_none() {
            return false;
        }
        if self.was_heard() {
            return true;
        }
        // Discards an earlier pong: it may be old, and proves nothing about the present.
        poll_fn(|cx| Poll::Ready(ping.poll_pong(cx).is_ready())).await;
        let _ = ping.send_ping(Ping::opaque()); // fails if a ping is in flight, which serves as well
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

    /// Returns when the connection has carried no tunnel for `limit`.
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

/// The error that ended a stream's reads. h2 passes on only its text, but explaining a TLS error needs its type.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<io::Error>>>);

impl Failure {
    pub(super) fn of<S>(&self, stream: S) -> Kept<S> {
        Kept { stream, failure: self.clone() }
    }

    /// Takes the error; later calls return `None`.
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().take()
    }
}

/// A stream that keeps its read error.
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
