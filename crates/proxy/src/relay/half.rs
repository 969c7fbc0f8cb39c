//! One direction of a relay.

use super::pipe::Pipe;
use crate::http2::PIECE;
use crate::reset::Reset;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Default)]
pub(super) struct Half {
    state: State,
    /// Data that was read and not yet written, from index `written` on.
    pending: Vec<u8>,
    written: usize,
    needs_flush: bool,
    /// `true` if the reader's connection is gone in both directions: nothing can be written to it either.
    pub(super) reader_gone: bool,
    /// `true` if the reader has ended, in order or by a break.
    pub(super) has_reader_ended: bool,
    /// `true` if everything was passed on, including the reader's end.
    pub(super) whole: bool,
    pub(super) copied: u64,
    /// Rate limit; boxed because few tunnels have one.
    pub(super) pace: Option<Box<Pace>>,
    /// `true` if the last read filled its buffer, or the last splice moved at least `LITTLE` bytes.
    is_bulk: bool,
    /// Data that was spliced and not yet written.
    pipe: Option<Pipe>,
    /// `true` if nothing more is read: the writer is shut down after what was read.
    is_stopped: bool,
}

/// Bytes that a direction copies before it splices: most tunnels carry less, too little to be worth a pipe.
const COPIED_FIRST: u64 = 256 * 1024;
/// Size of a splice, in bytes, below which the direction copies until a read fills its buffer again.
const LITTLE: usize = 16 * 1024;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Copying,
    /// The reader has ended; the writer must be shut down.
    Closing,
    Done,
}

impl Half {
    pub(super) fn new(early: &[u8]) -> Self {
        Self { pending: early.to_vec(), ..Self::default() }
    }

    /// Ends the direction after what was read; returns `true` the first time.
    pub(super) fn stop_reading(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stopped, true)
    }

    /// Becomes ready when this direction is over: the reader's end was passed on to the writer, or one of them broke. An error is
    /// returned once. `is_last` is `true` if the other direction is whole: the streams are dropped as soon as this one is over.
    pub(super) fn poll_copy<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
        is_last: bool,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Reset + Unpin,
        W: AsyncWrite + Reset + Unpin,
    {
        let ended = ready!(self.poll_steps(cx, reader, writer, scratch, is_last));
        self.state = State::Done;
        self.pending = Vec::new();
        self.written = 0;
        self.pipe = None;
        Poll::Ready(ended)
    }

    fn poll_steps<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
        is_last: bool,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Reset + Unpin,
        W: AsyncWrite + Reset + Unpin,
    {
        loop {
            match self.state {
                State::Copying => {
                    ready!(self.poll_write_pending(cx, writer))?;
                    if self.is_stopped {
                        self.state = State::Closing;
                        continue;
                    }
                    match self.poll_once(cx, reader, writer, scratch)? {
                        Poll::Ready(()) => {}
                        Poll::Pending => {
                            // TLS holds records back until it is flushed; flushing a plain socket does nothing.
                            if self.needs_flush {
                                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                                self.needs_flush = false;
                            }
                            return Poll::Pending;
                        }
                    }
                }
                // Saves a system call. All data from the writer was read, because its own direction is whole.
                State::Closing if is_last && writer.socket().is_some() => {
                    (self.state, self.whole) = (State::Done, true);
                }
                State::Closing => {
                    match ready!(Pin::new(&mut *writer).poll_shutdown(cx)) {
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                            return Poll::Ready(Err(error));
                        }
                        // A writer that is gone needs no shutdown.
                        _ => (self.state, self.whole) = (State::Done, true),
                    }
                }
                State::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads once, and writes the data as far as the writer takes it.
    fn poll_once<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Reset + Unpin,
        W: AsyncWrite + Reset + Unpin,
    {
        if self.is_bulk
            && let (Some(from), Some(_)) = (reader.socket(), writer.socket())
            && let Some(spliced) = self.poll_splice(cx, from)
        {
            return spliced;
        }
        self.poll_copy_once(cx, reader, writer, scratch)
    }

    /// Reads into a pipe, which the next step writes. `None` if there is no pipe, or if only a read can show what is there.
    fn poll_splice(&mut self, cx: &mut Context<'_>, from: &TcpStream) -> Option<Poll<io::Result<()>>> {
        let mut pipe = Pipe::take()?;
        let filled = match from.poll_read_ready(cx) {
            Poll::Ready(ready) => ready.and_then(|()| pipe.fill(from)),
            Poll::Pending => {
                pipe.give_back();
                return Some(Poll::Pending);
            }
        };
        match filled {
            Ok(filled @ 1..) => {
                self.is_bulk = filled >= LITTLE;
                self.pipe = Some(pipe);
                Some(Poll::Ready(Ok(())))
            }
            Err(error) if is_of_a_connection_gone(&error) => {
                (self.has_reader_ended, self.reader_gone) = (true, true);
                Some(Poll::Ready(Err(error)))
            }
            // No data, or urgent data, before which a splice stops even at the stream's end; or the system forbids splicing.
            Ok(_) | Err(_) => {
                pipe.give_back();
                None
            }
        }
    }

    fn poll_copy_once<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
        writer: &mut W,
        scratch: &mut [u8],
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Reset + Unpin,
        W: AsyncWrite + Reset + Unpin,
    {
        // Data beyond one frame would be sent as a separate frame.
        let is_framed = reader.socket().is_some() && writer.socket().is_none();
        let room = if is_framed { scratch.len().min(PIECE) } else { scratch.len() };
        let most = match &mut self.pace {
            Some(pace) => ready!(pace.poll_allowance(cx)).min(room),
            None => room,
        };
        let mut buffer = ReadBuf::new(&mut scratch[..most]);
        if let Err(error) = ready!(Pin::new(reader).poll_read(cx, &mut buffer)) {
            (self.has_reader_ended, self.reader_gone) = (true, is_of_a_connection_gone(&error));
            return Poll::Ready(Err(error));
        }
        let read = buffer.filled();
        self.is_bulk = self.pace.is_none() && read.len() == most && self.copied >= COPIED_FIRST;
        if let Some(pace) = &mut self.pace {
            pace.spend(read.len());
        }
        if read.is_empty() {
            (self.has_reader_ended, self.state) = (true, State::Closing);
            return Poll::Ready(Ok(()));
        }
        let taken = match Pin::new(writer).poll_write(cx, read) {
            Poll::Ready(result) => self.count(result?)?,
            Poll::Pending => 0,
        };
        self.pending.extend_from_slice(&read[taken..]);
        Poll::Ready(Ok(()))
    }

    fn poll_write_pending<W: AsyncWrite + Reset + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<()>> {
        while let (Some(pipe), Some(to)) = (&mut self.pipe, writer.socket()) {
            if pipe.held() == 0 {
                self.pipe.take().into_iter().for_each(Pipe::give_back);
            } else {
                let taken = ready!(pipe.poll_empty(cx, to))?;
                self.count(taken)?;
            }
        }
        while self.written < self.pending.len() {
            let taken = ready!(Pin::new(&mut *writer).poll_write(cx, &self.pending[self.written..]))?;
            self.written += self.count(taken)?;
        }
        if self.written > 0 {
            // Freed instead of kept: most tunnels are idle most of the time.
            self.pending = Vec::new();
            self.written = 0;
        }
        Poll::Ready(Ok(()))
    }

    fn count(&mut self, taken: usize) -> io::Result<usize> {
        if taken == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.needs_flush = true;
        self.copied += taken as u64;
        Ok(taken)
    }
}

/// Returns `true` if a read failed because the connection is gone. A TLS stream that ended without close_notify is not included:
/// its other direction may be open.
fn is_of_a_connection_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut)
}

/// Bytes to wait for before a read, if they accrue within 0.1 s: small reads cost as much as large ones.
const WORTH_READING: f64 = 16.0 * 1024.0;

/// Rate limit of one direction: a token bucket that holds one second's worth. Has the bytes that may pass now, and the time of
/// their calculation.
pub(crate) struct Pace {
    /// Bytes per second.
    rate: f64,
    level: f64,
    at: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Pace {
    pub(crate) fn new(bytes_a_second: u64) -> Box<Self> {
        let (rate, now) = (bytes_a_second.max(1) as f64, Instant::now());
        Box::new(Self { rate, level: rate, at: now, alarm: Box::pin(sleep_until(now)) })
    }

    /// Becomes ready with the number of bytes that may be read now, at least one.
    pub(crate) fn poll_allowance(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let least = (self.rate / 10.0).clamp(1.0, WORTH_READING);
        loop {
            let now = Instant::now();
            self.level = (self.level + (now - self.at).as_secs_f64() * self.rate).min(self.rate);
            self.at = now;
            if self.level >= least {
                return Poll::Ready(self.level as usize);
            }
            let wait = Duration::from_secs_f64((least - self.level) / self.rate);
            self.alarm.as_mut().reset(now + wait.max(Duration::from_millis(1)));
            ready!(self.alarm.as_mut().poll(cx));
        }
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        self.level -= bytes as f64;
    }
}
