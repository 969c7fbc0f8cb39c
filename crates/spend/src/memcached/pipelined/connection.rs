//! The task of one connection: it connects, serves a pipeline until something goes wrong, and connects again.

use super::pipeline::{Pipeline, Read};
use crate::Unknown;
use crate::memcached::address::Stream;
use crate::memcached::endpoint::Endpoint;
use crate::memcached::failure::broken;
use crate::memcached::options::Limits;
use crate::memcached::world::{instant, since};
use postern_tcp_info::TcpFacts;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Room for a hundred replies or more a read.
const READ_BUFFER: usize = 16 * 1024;

/// A connection that lasted this long is replaced without a pause.
const STEADY: Duration = Duration::from_secs(1);
/// A timer that has nothing to watch.
const NEVER: Duration = Duration::from_secs(86_400);

/// Keeps a pipeline connected until it is dropped.
pub(crate) async fn run(pipeline: Arc<Pipeline>, endpoint: Arc<Endpoint>, limits: Limits) {
    let pipeline = CloseOnDrop(pipeline);
    let mut backoff = endpoint.backoff();
    loop {
        let (reason, facts) = match endpoint.connect_proven().await {
            Ok((stream, _connected)) => {
                pipeline.0.open();
                let opened = Instant::now();
                let (reason, facts) = serve(stream, &pipeline.0, limits).await;
                if opened.elapsed() > STEADY {
                    backoff.reset();
                }
                (reason, facts)
            }
            Err(reason) => (reason, None),
        };
        pipeline.0.close(reason, facts);
        endpoint.failed(reason);
        backoff.wait().await;
    }
}

/// A runtime that shuts down drops this task wherever it is, and callers of other runtimes may still wait.
struct CloseOnDrop(Arc<Pipeline>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(Unknown::Unavailable(std::io::ErrorKind::NotConnected), None);
    }
}

/// Serves the pipeline until the connection fails. Returns the cause, and the kernel's facts if a caller had waited
/// long.
async fn serve(stream: Stream, pipeline: &Pipeline, limits: Limits) -> (Unknown, Option<TcpFacts>) {
    let mut deadline = pin!(sleep(NEVER));
    let mut serving = Serving {
        stream,
        pipeline,
        limits,
        watched: false,
        took_commands: false,
        taken: Vec::new(),
        written: 0,
        flushing: false,
        buffer: vec![0; READ_BUFFER].into_boxed_slice(),
        filled: 0,
        woken: Vec::new(),
    };
    let reason = poll_fn(|cx| serving.poll(cx, deadline.as_mut())).await;
    let waited = pipeline.oldest().is_some_and(|oldest| since(oldest) > limits.slow);
    (reason, if waited { serving.stream.tcp_facts() } else { None })
}

struct Serving<'a> {
    stream: Stream,
    pipeline: &'a Pipeline,
    limits: Limits,
    /// Whether the timer is set, and whether commands were taken since it was last looked at.
    watched: bool,
    took_commands: bool,
    /// Commands being written, and how much of them is.
    taken: Vec<u8>,
    written: usize,
    flushing: bool,
    /// Replies being read, and how much of the buffer they fill.
    buffer: Box<[u8]>,
    filled: usize,
    woken: Vec<Waker>,
}

impl Serving<'_> {
    /// Ready when the connection must be closed.
    fn poll(&mut self, cx: &mut Context<'_>, deadline: Pin<&mut Sleep>) -> Poll<Unknown> {
        if let Poll::Ready(reason) = self.poll_read(cx) {
            return Poll::Ready(reason);
        }
        if let Poll::Ready(reason) = self.poll_write(cx) {
            return Poll::Ready(reason);
        }
        self.poll_deadline(cx, deadline)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Unknown> {
        loop {
            let mut room = ReadBuf::new(&mut self.buffer[self.filled..]);
            if let Err(error) = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room)) {
                return Poll::Ready(broken(&error));
            }
            let read = room.filled().len();
            if read == 0 {
                return Poll::Ready(Unknown::Unavailable(std::io::ErrorKind::UnexpectedEof));
            }
            self.filled += read;
            let facts = || self.stream.tcp_facts();
            let read = Read::new(self.limits.slow, &facts);
            let delivered = self.pipeline.deliver(&self.buffer[..self.filled], &read, &mut self.woken);
            self.woken.drain(..).for_each(Waker::wake);
            let Ok(used) = delivered else { return Poll::Ready(Unknown::Garbled) };
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used; // shorter than one reply, so there is always room
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Unknown> {
        loop {
            if self.written == self.taken.len() {
                let mut done = None;
                if self.flushing {
                    if let Err(error) = ready!(Pin::new(&mut self.stream).poll_flush(cx)) {
                        return Poll::Ready(broken(&error));
                    }
                    self.flushing = false;
                    done = Some(instant());
                }
                self.taken.clear();
                self.written = 0;
                if !self.pipeline.take(&mut self.taken, done, cx.waker()) {
                    return Poll::Pending;
                }
                self.took_commands = true;
            }
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.taken[self.written..])) {
                Ok(0) => return Poll::Ready(Unknown::Unavailable(std::io::ErrorKind::WriteZero)),
                Ok(written) => self.written += written,
                Err(error) => return Poll::Ready(broken(&error)),
            }
            self.flushing = true;
        }
    }

    /// Replies come in order, so one timer for the oldest command does for all: when it has waited too long, nothing
    /// behind it will be answered in time either. The timer is set when it fires and when an idle connection gets
    /// something to do, not with every command.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, mut deadline: Pin<&mut Sleep>) -> Poll<Unknown> {
        if std::mem::take(&mut self.took_commands) && !self.watched {
            self.watched = true;
            deadline.as_mut().reset(Instant::now() + self.limits.patience);
        }
        while deadline.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let next = self.pipeline.oldest().map(|since| Instant::from_std(since) + self.limits.patience);
            if next.is_some_and(|due| due <= now) {
                return Poll::Ready(Unknown::TimedOut);
            }
            self.watched = next.is_some();
            deadline.as_mut().reset(next.unwrap_or(now + NEVER));
        }
        Poll::Pending
    }
}
