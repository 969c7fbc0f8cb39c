//! The stream under hyper: a deadline on writing, no more reading ahead than there is use for, and interim answers, which hyper cannot
//! send. hyper has a deadline for reading a header, and none for a client that does not read its answers.

use crate::exchange::Exchange;
use crate::http;
use bytes::{Buf, Bytes};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Heads of requests are read in pieces of this size at most, in bytes. hyper keeps two buffers of what it reads at once for a
/// client that sends requests ahead.
const HEAD_PIECE: usize = 4096;

/// A client's connection. Writes to it fail with [`io::ErrorKind::TimedOut`] when the client leaves them unread for longer than
/// the patience of its [`Exchange`]; meanwhile nothing is read.
///
/// Most answers are written at once: only a write that has to wait costs an alarm.
#[derive(Debug)]
pub struct ClientStream<S> {
    stream: S,
    exchange: Exchange,
    /// The heads of interim answers, as far as they are not written.
    interim: Bytes,
    waiting: Option<Waiting>,
}

/// Something that was written waits for the peer to read.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl<S> ClientStream<S> {
    /// Bounds what is written to `stream`, and read from it.
    pub fn new(stream: S, exchange: Exchange) -> Self {
        Self { stream, exchange, interim: Bytes::new(), waiting: None }
    }

    /// The stream without bounds: a tunnel has its own.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// A write cannot go on: waits with it, until the deadline.
    fn stuck<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let exchange = &self.exchange;
        let waiting = self.waiting.get_or_insert_with(|| {
            exchange.set_unread(true);
            let since = Instant::now();
            Waiting { since, alarm: Box::pin(sleep_until(exchange.deadline(since))) }
        });
        ready!(waiting.alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what it is sent")))
    }

    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            return self.stuck(cx);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.alarm.as_mut().reset(self.exchange.deadline(waiting.since));
        }
        written
    }

    fn emptied(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if done.is_pending() {
            return self.stuck(cx);
        }
        if self.waiting.take().is_some() {
            self.exchange.set_unread(false);
            cx.waker().wake_by_ref(); // the service may wait for it
        }
        done
    }
}

impl<S: AsyncWrite + Unpin> ClientStream<S> {
    /// Writes the interim answers that came. hyper has nothing unwritten of another message while a service works on an answer
    /// ([`Exchange::begin`] waits until the one before is taken), and it flushes whenever it has polled the service.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            while self.interim.has_remaining() {
                match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.interim))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => self.interim.advance(written),
                }
            }
            let answers = self.exchange.take_interim();
            if answers.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let heads = answers.iter().flat_map(|answer| http::head(answer.status(), answer.headers()));
            self.interim = heads.collect();
        }
    }

    /// What `poll` does with the stream, behind the interim answers that came.
    fn poll_behind_interim<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        ready!(self.poll_interim(cx))?;
        poll(Pin::new(&mut self.stream), cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What follows would only be kept. An answer that is streamed may be one to a request that is still coming.
        if self.waiting.is_some() && !self.exchange.is_streaming() {
            return Poll::Pending; // `emptied` wakes the task
        }
        if self.exchange.is_answering() {
            return Pin::new(&mut self.stream).poll_read(cx, buf); // a request's body
        }
        let mut piece = [MaybeUninit::uninit(); HEAD_PIECE];
        let room = buf.remaining().min(piece.len());
        let mut piece = ReadBuf::uninit(&mut piece[..room]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        buf.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.poll_behind_interim(cx, |stream, cx| stream.poll_write(cx, buf));
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_behind_interim(cx, |stream, cx| stream.poll_write_vectored(cx, bufs));
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when nothing is left in its own buffer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.exchange.flushed();
        let done = self.poll_behind_interim(cx, |stream, cx| stream.poll_flush(cx));
        self.emptied(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.emptied(cx, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Patience;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    const SECOND: Duration = Duration::from_secs(1);
    /// More than the pipe of 16 bytes takes.
    const LONG: [u8; 200] = [b'x'; 200];

    fn stream() -> (DuplexStream, ClientStream<DuplexStream>, Exchange) {
        let (far, near) = duplex(16);
        let exchange = Exchange::new(Patience { answer: 10 * SECOND, stream: 60 * SECOND });
        (far, ClientStream::new(near, exchange.clone()), exchange)
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_while_an_answer_is_left_unread_unless_it_is_streamed() {
        for is_streamed in [false, true] {
            let (mut far, mut stream, exchange) = stream();
            let _answering = exchange.begin().await;
            if is_streamed {
                exchange.stream();
            }
            far.write_all(b"next").await.unwrap();
            assert!(timeout(SECOND, stream.write_all(&LONG)).await.is_err(), "the pipe is full");
            let mut next = [0; 4];
            let read = timeout(SECOND, stream.read(&mut next)).await;
            assert_eq!(read.is_ok(), is_streamed);
            if !is_streamed {
                far.read_exact(&mut [0; 16]).await.unwrap();
                stream.flush().await.unwrap();
                stream.read_exact(&mut next).await.unwrap();
            }
            assert_eq!(&next, b"next");
        }
    }

    #[tokio::test]
    async fn heads_are_read_in_pieces_and_bodies_whole() {
        let (mut far, near) = duplex(1 << 20);
        let exchange = Exchange::new(Patience { answer: SECOND, stream: SECOND });
        let mut stream = ClientStream::new(near, exchange.clone());
        far.write_all(&[b'x'; 3 * HEAD_PIECE]).await.unwrap();
        let mut bytes = [0; 3 * HEAD_PIECE];
        assert_eq!(stream.read(&mut bytes).await.unwrap(), HEAD_PIECE);
        let _answering = exchange.begin().await;
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 2 * HEAD_PIECE);
    }

    /// Reads `size` bytes at a time with a pause before each, until the other side is gone; returns how many came.
    async fn read_slowly(mut far: DuplexStream, size: usize, pause: Duration) -> usize {
        let (mut total, mut bytes) = (0, vec![0; size]);
        loop {
            sleep(pause).await;
            match far.read(&mut bytes).await.unwrap() {
                0 => return total,
                read => total += read,
            }
        }
    }

    /// Writes LONG for a peer that reads `size` bytes every `pause` seconds: how it ended, after how many seconds.
    async fn written(size: usize, pause: u32, is_streamed: bool) -> (Result<usize, io::ErrorKind>, u64) {
        let (far, mut stream, exchange) = stream();
        let answering = exchange.begin().await;
        if is_streamed {
            exchange.stream();
        }
        let began = Instant::now();
        let reading = tokio::spawn(read_slowly(far, size, pause * SECOND));
        let wrote = async {
            stream.write_all(&LONG).await?;
            stream.flush().await
        };
        let wrote = wrote.await.map_err(|error| error.kind());
        let took = began.elapsed().as_secs();
        drop((answering, stream));
        let read = reading.await.unwrap();
        (wrote.map(|()| read), took)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_fails_after_its_patience_and_one_that_is_read_slowly_arrives_whole() {
        assert_eq!(written(16, 1000, false).await, (Err(io::ErrorKind::TimedOut), 10));
        assert_eq!(written(16, 1000, true).await, (Err(io::ErrorKind::TimedOut), 60));
        assert_eq!(written(16, 3, false).await, (Ok(200), 36)); // longer than the patience, never silent for so long
        assert_eq!(written(16, 50, true).await, (Ok(200), 600));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_byte_by_byte_fails_after_a_while_and_a_streamed_one_does_not() {
        assert_eq!(written(1, 9, false).await, (Err(io::ErrorKind::TimedOut), 40));
        assert_eq!(written(1, 9, true).await, (Ok(200), 184 * 9));
    }

    #[tokio::test(start_paused = true)]
    async fn the_service_waits_until_the_client_has_taken_the_answers_before() {
        let (mut far, mut stream, exchange) = stream();
        let answering = exchange.begin().await;
        let next = exchange.clone();
        let both = async {
            let write = async {
                stream.write_all(&LONG).await.unwrap();
                stream.flush().await.unwrap();
            };
            let wait = async {
                tokio::task::yield_now().await;
                let _next = next.begin().await;
                Instant::now()
            };
            tokio::join!(write, wait).1
        };
        let began = Instant::now();
        let read = async {
            sleep(5 * SECOND).await;
            far.read_exact(&mut [0; 200]).await.unwrap();
        };
        let (begun, _) = tokio::join!(both, read);
        drop(answering);
        assert_eq!((begun - began).as_secs(), 5);
    }
}
