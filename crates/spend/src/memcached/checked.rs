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
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// A connection below memcache-async, which waits for each reply before it writes the next command, and takes any line that is
/// no error for a stored record.
///
/// * Write side: all commands of an exchange leave in one write, before memcache-async begins. What it writes itself has to be
///   the same bytes, and goes no further.
/// * Read side: the strict parser of the pipelined transport decides. memcache-async is given one whole reply that belongs to
///   its command, so it never sees a line that it would misread or a length that it would allocate.
pub(crate) struct Checked {
    stream: Stream,
    /// Commands as they were sent, from which memcache-async's own are taken off.
    sent: Vec<u8>,
    repeated: usize,
    /// The command that is being answered, until its reply is whole, and then the reply.
    awaited: Option<ReplyKind>,
    accepted: Option<Reply>,
    held: Box<[u8; 2 * LONGEST_REPLY]>,
    filled: usize,
    /// How much of what is held may be read, and how much has been.
    released: usize,
    read: usize,
    /// When the exchange had been given to the kernel, and when the first byte of a reply was read.
    written: Option<Instant>,
    first_byte: Option<Instant>,
}

impl Checked {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            sent: Vec::new(),
            repeated: 0,
            awaited: None,
            accepted: None,
            held: Box::new([0; 2 * LONGEST_REPLY]),
            filled: 0,
            released: 0,
            read: 0,
            written: None,
            first_byte: None,
        }
    }

    /// Sends all commands in one write and reads their replies. After an error, or dropped before its end, the connection is of
    /// no use.
    pub(crate) async fn exchange<const N: usize>(
        &mut self,
        commands: [&Command; N],
    ) -> io::Result<[Reply; N]> {
        if self.filled != 0 {
            return Err(io::ErrorKind::InvalidData.into()); // it would be taken for the first reply
        }
        self.sent.clear();
        (self.repeated, self.written, self.first_byte) = (0, None, None);
        commands.iter().for_each(|command| command.encode(&mut self.sent));
        self.stream.write_all(&self.sent).await?;
        self.stream.flush().await?;
        self.written = Some(instant());
        let mut replies = [Reply::Miss; N];
        for (reply, command) in replies.iter_mut().zip(commands) {
            *reply = self.reply_to(command).await?;
        }
        // Bytes beyond the last reply belong to no command.
        if self.filled == 0 { Ok(replies) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    async fn reply_to(&mut self, command: &Command) -> io::Result<Reply> {
        self.awaited = Some(command.reply_kind());
        // A Protocol a command: what it has buffered is nothing, since only this reply is let through.
        let understood = match command {
            Command::Get(key) => match Protocol::new(&mut *self).get(key.as_bytes()).await {
                Ok(value) => Value::of(key, &value).map(Reply::Hit),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Reply::Miss),
                Err(error) => Some(self.server_error(error)?),
            },
            Command::Add { key, value, expires } => {
                match Protocol::new(&mut *self).add(key, value.as_bytes(), exptime(*expires)).await {
                    Ok(()) => Some(Reply::Stored),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(Reply::NotStored),
                    Err(error) => Some(self.server_error(error)?),
                }
            }
        };
        let is_read = self.read == self.released;
        self.held.copy_within(self.released..self.filled, 0);
        self.filled -= self.released;
        (self.released, self.read) = (0, 0);
        // Two readers of one reply must agree.
        match self.accepted.take() {
            Some(reply) if is_read && understood == Some(reply) => Ok(reply),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// memcache-async reports a `SERVER_ERROR` as another error with the line; one of the connection stays one.
    fn server_error(&self, error: io::Error) -> io::Result<Reply> {
        let is_reply = self.accepted == Some(Reply::ServerError) && error.kind() == io::ErrorKind::Other;
        if is_reply { Ok(Reply::ServerError) } else { Err(error) }
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

    /// When the last exchange had been written, and when the first byte of its replies was read.
    pub(crate) fn stamps(&self) -> (Option<Instant>, Option<Instant>) {
        (self.written, self.first_byte)
    }

    /// What the kernel knows of the connection.
    pub(crate) fn tcp_facts(&self) -> Option<TcpFacts> {
        self.stream.tcp_facts()
    }
}

impl AsyncRead for Checked {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while let Some(awaited) = this.awaited {
            match parse(&awaited, &this.held[..this.filled]) {
                Ok(Some((reply, length))) => {
                    (this.awaited, this.accepted, this.released) = (None, Some(reply), length);
                }
                Ok(None) => {
                    let mut room = ReadBuf::new(&mut this.held[this.filled..]);
                    ready!(Pin::new(&mut this.stream).poll_read(cx, &mut room))?;
                    if room.filled().is_empty() {
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                    this.filled += room.filled().len();
                    this.first_byte.get_or_insert_with(instant);
                }
                Err(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            }
        }
        let length = buf.remaining().min(this.released - this.read);
        buf.put_slice(&this.held[this.read..this.read + length]);
        this.read += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Checked {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !self.sent[self.repeated..].starts_with(buf) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        self.repeated += buf.len();
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
