//! The pipelined transport: one connection carries the commands of all callers at once.
//!
//! Commands that arrive together leave in one write, replies are matched in order, and no caller waits for another's round trip.
//! A task serves the queue (`pipeline`): it connects, sends and receives until a failure, and connects again.

mod pipeline;

use super::address::Stream;
use super::endpoint::Endpoint;
use super::options::Options;
use super::protocol::{Command, Failure, NOT_CONNECTED, Reply};
use super::world::{instant, jittered, since};
use crate::Unknown;
use crate::exchange_log::Entry;
use pipeline::{Pipeline, Waiting};
use postern_net::TcpFacts;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, sleep};

/// Room for a hundred replies or more per read.
const READ_BUFFER: usize = 16 * 1024;

/// The first and the longest pause between attempts to connect: a store that is back is in use within a second.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// A connection that lasted this long is followed by the first pause.
const STEADY: Duration = Duration::from_secs(1);
/// The deadline of a timer that watches nothing.
const NEVER: Duration = Duration::from_secs(86_400);

pub(crate) struct Pipelined {
    pipeline: Arc<Pipeline>,
    task: JoinHandle<()>,
    slow: Duration,
}

impl Pipelined {
    /// Starts the connection on the current runtime, for at most `queue` commands at once. Until it is proven, everything is
    /// refused.
    pub(crate) fn start(endpoint: &Arc<Endpoint>, queue: usize) -> Self {
        let pipeline = Arc::new(Pipeline::new(queue));
        let task = tokio::spawn(run(Arc::clone(&pipeline), Arc::clone(endpoint)));
        Self { pipeline, task, slow: endpoint.options.slow }
    }

    /// Sends all commands in one write, `add`s before `get`s. Returns after the last reply: a reply to an `add` names no key,
    /// and an extra reply before it would have shifted it.
    pub(crate) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        let waiting = self.pipeline.submit(commands, entry.began)?;
        let mut noting = Noting { waiting, entry };
        let answer = (&mut noting.waiting).await;
        noting.entry.change(|exchange| {
            (exchange.written, exchange.first_byte) = (answer.written, answer.read);
            // Read for the oldest command of the burst; this one may have come later.
            exchange.tcp = answer.tcp.filter(|_| since(exchange.began) > self.slow);
        });
        answer.result.map(|replies| std::array::from_fn(|command| replies[command]))
    }

    pub(crate) fn is_up(&self) -> bool {
        self.pipeline.is_up()
    }

    /// Returns the number of commands without a reply, and its maximum.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.pipeline.outstanding(), self.pipeline.limit)
    }
}

impl Drop for Pipelined {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A caller's wait. If dropped early, the exchange log contains the time at which the commands were written.
struct Noting<'a, 'b> {
    waiting: Waiting<'a>,
    entry: &'a mut Entry<'b>,
}

impl Drop for Noting<'_, '_> {
    fn drop(&mut self) {
        if let Some(written) = self.waiting.written() {
            self.entry.change(|exchange| exchange.written = Some(written));
        }
    }
}

/// Keeps a pipeline connected until the task is aborted.
async fn run(pipeline: Arc<Pipeline>, endpoint: Arc<Endpoint>) {
    let pipeline = CloseOnDrop(pipeline);
    let mut pause = FIRST_PAUSE;
    loop {
        let (reason, facts) = match endpoint.connect_answering().await {
            Ok(connection) => {
                pipeline.0.open();
                let opened = Instant::now();
                let (reason, facts) = serve(connection.stream, &pipeline.0, &endpoint.options).await;
                if opened.elapsed() > STEADY {
                    pause = FIRST_PAUSE;
                }
                (reason, facts)
            }
            Err(reason) => (reason, None),
        };
        pipeline.0.close(reason, facts);
        endpoint.failed(reason);
        sleep(jittered(pause)).await; // so that a fleet does not reconnect in step
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A guard that fails waiting callers: a runtime that shuts down drops this task at any point, and callers of other runtimes may
/// still wait.
struct CloseOnDrop(Arc<Pipeline>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close(NOT_CONNECTED, None);
    }
}

/// Serves the pipeline until the connection fails. Returns the cause, and the kernel's facts if a caller had waited for long.
async fn serve(stream: Stream, pipeline: &Pipeline, options: &Options) -> (Unknown, Option<TcpFacts>) {
    let mut deadline = pin!(sleep(NEVER));
    let mut serving = Serving {
        stream,
        pipeline,
        options,
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
    let waited = pipeline.oldest().is_some_and(|oldest| since(oldest) > options.slow);
    (reason, if waited { serving.stream.tcp_facts() } else { None })
}

struct Serving<'a> {
    stream: Stream,
    pipeline: &'a Pipeline,
    options: &'a Options,
    /// `true` if the timer is set, and `true` if commands were taken since the timer was last checked.
    watched: bool,
    took_commands: bool,
    /// Commands being written, and the length already written.
    taken: Vec<u8>,
    written: usize,
    flushing: bool,
    /// Replies being read, and the length filled.
    buffer: Box<[u8]>,
    filled: usize,
    woken: Vec<Waker>,
}

impl Serving<'_> {
    /// Returns the reason when the connection must be closed.
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
                return Poll::Ready(error.into());
            }
            let read = room.filled().len();
            if read == 0 {
                return Poll::Ready(Unknown::Unavailable(std::io::ErrorKind::UnexpectedEof));
            }
            self.filled += read;
            let facts = || self.stream.tcp_facts();
            let (bytes, facts) = (&self.buffer[..self.filled], (self.options.slow, &facts as _));
            let delivered = self.pipeline.deliver(bytes, facts, &mut self.woken);
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
                        return Poll::Ready(error.into());
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
                Err(error) => return Poll::Ready(error.into()),
            }
            self.flushing = true;
        }
    }

    /// Checks the timeout. Replies come in order, so one timer for the oldest command is enough: if that command has waited too
    /// long, no later one will be answered in time either. The timer is set when it fires and when an idle connection gets
    /// commands, not for every command.
    fn poll_deadline(&mut self, cx: &mut Context<'_>, mut deadline: Pin<&mut Sleep>) -> Poll<Unknown> {
        if std::mem::take(&mut self.took_commands) && !self.watched {
            self.watched = true;
            deadline.as_mut().reset(Instant::now() + self.options.timeout);
        }
        while deadline.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let next = self.pipeline.oldest().map(|since| Instant::from_std(since) + self.options.timeout);
            if next.is_some_and(|due| due <= now) {
                return Poll::Ready(Unknown::TimedOut);
            }
            // A server may have answered what it has not read whole: then no command is sent, and the write may block for ever.
            let is_writing = self.written < self.taken.len() || self.flushing;
            let next = next.or(is_writing.then(|| now + self.options.timeout));
            self.watched = next.is_some();
            deadline.as_mut().reset(next.unwrap_or(now + NEVER));
        }
        Poll::Pending
    }
}
