//! memcache-async on a connection that lets only checked replies through.

use super::address::Stream;
use super::protocol::{Command, LONGEST_REPLY, Reply, ReplyKind, Value, exptime, parse};
use super::world::instant;
use memcache_async::ascii::Protocol;
use postern_tcp_info::TcpFacts;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};

/// A connection below memcache-async.
///
/// * Read side: bytes are held back until they are one complete reply to the command that was sent, byte for byte one
///   of those it can have. Anything else is an error, and at most 512 bytes are ever held. So memcache-async never sees
///   a line it would misread or a length it would allocate.
/// * Write side: buffered, so that a command leaves in one write when memcache-async flushes it.
pub(crate) struct Checked {
    stream: BufWriter<Stream>,
    expected: Expected,
    held: Box<[u8; LONGEST_REPLY]>,
    filled: usize,
    /// How much of what is held may be read, and how much has been.
    released: usize,
    read: usize,
    /// When the last command had been given to the kernel, and when the first byte of its reply was read.
    written: Option<Instant>,
    first_byte: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Expected {
    Nothing,
    Reply(ReplyKind),
    /// `VERSION <text>`.
    Version,
    Accepted(Option<Reply>),
}

impl Checked {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream: BufWriter::with_capacity(256, stream), // the longest command is 95 bytes
            expected: Expected::Nothing,
            held: Box::new([0; LONGEST_REPLY]),
            filled: 0,
            released: 0,
            read: 0,
            written: None,
            first_byte: None,
        }
    }

    /// One command and its reply.
    pub(crate) async fn exchange(&mut self, command: &Command) -> Result<Reply, io::Error> {
        self.expect(Expected::Reply(command.reply_kind()))?;
        // A Protocol a command: what it has buffered is nothing, since only this reply is let through.
        let understood = match command {
            Command::Get(key) => {
                let value = Protocol::new(&mut *self).get(key.as_bytes()).await;
                match value {
                    Ok(value) => Value::of(key, &value).map(Reply::Hit),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Reply::Miss),
                    Err(error) => Some(self.server_error(error)?),
                }
            }
            Command::Add { key, value, expires } => {
                match Protocol::new(&mut *self).add(key, value.as_bytes(), exptime(*expires)).await {
                    Ok(()) => Some(Reply::Stored),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(Reply::NotStored),
                    Err(error) => Some(self.server_error(error)?),
                }
            }
        };
        // Two readers of one reply must agree.
        match self.finished() {
            Some(reply) if understood == Some(reply) => Ok(reply),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Whether nothing has come since the last reply, as far as this runtime has seen. Unexpected bytes would be taken
    /// for the next command's reply, and after the end of the stream there will be no reply.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        let look = poll_fn(|cx| {
            let mut room = [0; 1];
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut room));
            Poll::Ready(read.is_pending())
        });
        tokio::task::unconstrained(look).await
    }

    /// When the last command had been written, and when the first byte of its reply was read.
    pub(crate) fn stamps(&self) -> (Option<Instant>, Option<Instant>) {
        (self.written, self.first_byte)
    }

    /// What the kernel knows of the connection.
    pub(crate) fn tcp_facts(&self) -> Option<TcpFacts> {
        self.stream.get_ref().tcp_facts()
    }

    /// Sends `version`.
    pub(crate) async fn version(&mut self) -> Result<(), io::Error> {
        self.expect(Expected::Version)?;
        Protocol::new(&mut *self).version().await?;
        self.finished();
        Ok(())
    }

    /// Nothing may be left over when a command begins: it would be taken for its reply.
    fn expect(&mut self, expected: Expected) -> io::Result<()> {
        (self.written, self.first_byte) = (None, None);
        if !matches!(self.expected, Expected::Nothing) || self.filled != 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.expected = expected;
        Ok(())
    }

    /// memcache-async reports a `SERVER_ERROR` as another error with the line; one of the connection stays one.
    fn server_error(&self, error: io::Error) -> io::Result<Reply> {
        let expected = matches!(self.expected, Expected::Accepted(Some(Reply::ServerError)));
        if expected && error.kind() == io::ErrorKind::Other { Ok(Reply::ServerError) } else { Err(error) }
    }

    fn finished(&mut self) -> Option<Reply> {
        let whole = self.read == self.released;
        (self.filled, self.released, self.read) = (0, 0, 0);
        match std::mem::replace(&mut self.expected, Expected::Nothing) {
            Expected::Accepted(reply) if whole => reply,
            _ => None,
        }
    }

    /// Looks at what is held; true when it is a complete reply.
    fn check(&mut self) -> io::Result<bool> {
        let held = &self.held[..self.filled];
        let found = match &self.expected {
            Expected::Reply(reply_kind) => match parse(reply_kind, held) {
                Ok(Some((reply, length))) => Some((Some(reply), length)),
                Ok(None) => None,
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            },
            Expected::Version => version_line(held)?.map(|length| (None, length)),
            Expected::Nothing | Expected::Accepted(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        let Some((reply, length)) = found else { return Ok(false) };
        if length != self.filled {
            return Err(io::ErrorKind::InvalidData.into()); // more than one reply
        }
        self.released = length;
        self.expected = Expected::Accepted(reply);
        Ok(true)
    }
}

/// The length of `VERSION <text>`, of bounded length.
fn version_line(bytes: &[u8]) -> io::Result<Option<usize>> {
    const VERSION: &[u8] = b"VERSION ";
    let shorter = bytes.len().min(VERSION.len());
    if bytes[..shorter] != VERSION[..shorter] || bytes.len() == LONGEST_REPLY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(bytes.windows(2).position(|pair| pair == b"\r\n").map(|end| end + 2))
}

impl AsyncRead for Checked {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.read == this.released {
            let mut room = ReadBuf::new(&mut this.held[this.filled..]);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Ok(())); // the end of the stream, or a reply longer than any
            }
            this.filled += room.filled().len();
            this.first_byte.get_or_insert_with(instant);
            this.check()?;
        }
        let length = buf.remaining().min(this.released - this.read);
        buf.put_slice(&this.held[this.read..this.read + length]);
        this.read += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Checked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.written = Some(instant()); // memcache-async flushes a command once, behind its last byte
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
