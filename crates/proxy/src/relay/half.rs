//! One direction of a relay.

use super::pace::Pace;
use super::pipe::Pipe;
use crate::http2::PIECE;
use crate::reset::Reset;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// One direction.
pub(super) struct Half {
    state: State,
    /// What was read and not yet written, from `written` on.
    pending: Vec<u8>,
    written: usize,
    needs_flush: bool,
    /// The reader's connection is gone, both ways: nothing can be written to it either.
    pub(super) reader_gone: bool,
    /// All of it was passed on, the reader's end too.
    pub(super) whole: bool,
    pub(super) copied: u64,
    /// How fast it may go. Boxed, because few tunnels have one.
    pub(super) pace: Option<Box<Pace>>,
    /// The last read brought as much as it could, or the last splices brought much.
    is_bulk: bool,
    /// What was read and not yet written, where it was not copied.
    pipe: Option<Pipe>,
}

/// What a direction copies before it splices: most tunnels carry less, and a pipe is not worth its price for them.
const COPIED_FIRST: u64 = 256 * 1024;
/// A splice that brings less is the last one, until a read fills its buffer again.
const LITTLE: usize = 16 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Copying,
    /// The reader is done; the writer must be shut down.
    Closing,
    Done,
}

impl Half {
    pub(super) fn new(early: &[u8]) -> Self {
        Self {
            state: State::Copying,
            pending: early.to_vec(),
            written: 0,
            needs_flush: false,
            reader_gone: false,
            whole: false,
            copied: 0,
            pace: None,
            is_bulk: false,
            pipe: None,
        }
    }

    /// Ready when this direction is over: the reader's end was passed on to the writer, or one of them broke. An error
    /// is reported once. `is_last` when the other direction is whole: the streams are dropped as soon as this one is over.
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
                    match self.poll_once(cx, reader, writer, scratch)? {
                        Poll::Ready(()) => {}
                        Poll::Pending => {
                            // TLS keeps records back until it is flushed; a plain socket does nothing here.
                            if self.needs_flush {
                                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                                self.needs_flush = false;
                            }
                            return Poll::Pending;
                        }
                    }
                }
                // A system call less. All that came from the writer was read, since its own direction is whole.
                State::Closing if is_last && writer.socket().is_some() => {
                    (self.state, self.whole) = (State::Done, true);
                }
                State::Closing => {
                    match ready!(Pin::new(&mut *writer).poll_shutdown(cx)) {
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                            return Poll::Ready(Err(error));
                        }
                        // A writer that has gone away needs no shutdown.
                        _ => (self.state, self.whole) = (State::Done, true),
                    }
                }
                State::Done => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads once, and writes what was read as far as the writer takes it.
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

    /// Reads into a pipe; the next step passes it on. `None` when there is no pipe, or only a read shows what is there.
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
                self.reader_gone = true;
                Some(Poll::Ready(Err(error)))
            }
            // Nothing is there, or urgent data, before which a splice stops even at the stream's end; or the system forbids it.
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
        // What a frame would not hold would go out as one of its own.
        let is_framed = reader.socket().is_some() && writer.socket().is_none();
        let room = if is_framed { scratch.len().min(PIECE) } else { scratch.len() };
        let most = match &mut self.pace {
            Some(pace) => ready!(pace.poll_allowance(cx)).min(room),
            None => room,
        };
        let mut buffer = ReadBuf::new(&mut scratch[..most]);
        if let Err(error) = ready!(Pin::new(reader).poll_read(cx, &mut buffer)) {
            self.reader_gone = is_of_a_connection_gone(&error);
            return Poll::Ready(Err(error));
        }
        let read = buffer.filled();
        self.is_bulk = self.pace.is_none() && read.len() == most && self.copied >= COPIED_FIRST;
        if let Some(pace) = &mut self.pace {
            pace.spend(read.len());
        }
        if read.is_empty() {
            self.state = State::Closing;
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
            // Given back, not kept for the next time: most tunnels are idle most of the time.
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

/// Whether a read failed because there is no connection any more. A TLS stream that ended without close_notify is not
/// meant: its other direction may be open.
fn is_of_a_connection_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut)
}
