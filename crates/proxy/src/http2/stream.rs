//! An HTTP/2 stream as one side of a relay.

use super::PIECE;
use super::inbox::{Inbox, kind};
use crate::reset::Reset;
use bytes::Bytes;
use h2::{Reason, SendStream};
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of waiting pieces above which a stream accepts no more.
const PIECES: usize = 64;

/// Both directions of a stream after the exchange of headers. Its task must [keep its inbox taking](Inbox::keep_taking).
#[derive(Debug)]
pub struct Http2Stream {
    inbox: Inbox,
    outbox: SendStream<Bytes>,
    queue: Queue,
    /// Code of the reset with which the stream ends; 0 for none.
    resets: AtomicU32,
}

impl Http2Stream {
    pub fn new(inbox: Inbox, outbox: SendStream<Bytes>) -> Self {
        Self { inbox, outbox, queue: Queue::default(), resets: AtomicU32::new(0) }
    }

    /// Returns the number of bytes that may be queued now: the peer's window, as far as the queue has room. While data is queued,
    /// this is `wanted` or pending: a small piece costs as much as a large one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        loop {
            let room = self.outbox.capacity();
            if room >= wanted || room > 0 && self.queue.poll_at_most(0, cx).is_ready() {
                return Poll::Ready(Ok(room.min(wanted)));
            }
            self.outbox.reserve_capacity(wanted);
            if self.outbox.capacity() > room {
                continue;
            }
            match ready!(self.outbox.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(kind(&error).into())),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }

    fn send(&mut self, bytes: Bytes, is_end: bool) -> io::Result<()> {
        // The only possible error is that the stream is over.
        self.outbox.send_data(bytes, is_end).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Becomes ready when the peer has reset the stream, or its connection is gone.
    pub fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.outbox.poll_reset(cx).map(|_| ())
    }

    /// Becomes ready when all queued data is written.
    pub fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.queue.poll_at_most(0, cx)
    }

    /// Ends the sending side with trailer fields.
    pub fn end_with(&mut self, trailers: http::HeaderMap) -> io::Result<()> {
        self.outbox.send_trailers(trailers).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncRead for Http2Stream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inbox.poll_read(buf)
    }
}

impl AsyncWrite for Http2Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.queue.poll_at_most(PIECES, cx));
        let length = ready!(self.poll_room(cx, buf.len().min(PIECE)))?;
        let piece = self.queue.piece(Box::from(&buf[..length]));
        self.send(piece, false)?;
        Poll::Ready(Ok(length))
    }

    /// Returns at once: the connection's task writes the queued data.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send(Bytes::new(), true))
    }
}

/// Reports a broken TCP connection as CONNECT_ERROR (RFC 9113, section 8.5), and a malformed stream as PROTOCOL_ERROR (section
/// 8.1.1). The first report counts.
impl Reset for Http2Stream {
    fn reset(&self) {
        let code = u32::from(Reason::CONNECT_ERROR);
        _ = self.resets.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn reset_as_malformed(&self) {
        let code = u32::from(Reason::PROTOCOL_ERROR);
        _ = self.resets.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns `true` if the connection's task has written everything: a reset discards only queued data.
    fn is_delivered(&self) -> bool {
        self.queue.pieces() == 0
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        if let code @ 1.. = self.resets.load(Ordering::Relaxed) {
            self.outbox.send_reset(Reason::from(code));
        }
    }
}

/// A count of the pieces that wait to be written. A piece costs some hundred bytes in addition to its data, so the number of
/// pieces needs a bound, too.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    pieces: usize,
    sender: Option<Waker>,
}

/// A piece that counts until it is dropped.
struct Piece {
    bytes: Box<[u8]>,
    queue: Queue,
}

impl Queue {
    /// Returns a piece that counts until it is written, or dropped with its stream.
    #[must_use]
    pub fn piece(&self, bytes: Box<[u8]>) -> Bytes {
        self.0.lock().pieces += 1;
        Bytes::from_owner(Piece { bytes, queue: self.clone() })
    }

    pub fn pieces(&self) -> usize {
        self.0.lock().pieces
    }

    /// Becomes ready when at most `most` pieces wait.
    fn poll_at_most(&self, most: usize, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = self.0.lock();
        if waiting.pieces <= most {
            return Poll::Ready(());
        }
        waiting.sender = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut waiting = self.queue.0.lock();
        waiting.pieces -= 1;
        waiting.sender.take().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http2::{CONNECTION_WINDOW, FRAME, SEND_QUEUE};
    use http::{Request, Response};
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;
    use tokio::time::{Duration, timeout};

    /// The capacity of the queue is not a multiple of a piece.
    #[tokio::test]
    async fn bulk_goes_out_in_whole_pieces() {
        const PIECES: usize = 64;
        let (near, far) = tokio::io::duplex(256 << 10);
        let (mut sender, client) = h2::client::Builder::new()
            .initial_window_size(1 << 30)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .handshake::<_, Bytes>(near)
            .await
            .unwrap();
        tokio::spawn(client);
        let (response, _) = sender.send_request(Request::new(()), true).unwrap();
        let mut server = h2::server::Builder::new()
            .max_send_buffer_size(SEND_QUEUE)
            .handshake::<_, Bytes>(far)
            .await
            .unwrap();
        let (request, mut respond) = server.accept().await.unwrap().unwrap();
        tokio::spawn(async move { poll_fn(|cx| server.poll_closed(cx)).await });
        let outbox = respond.send_response(Response::new(()), false).unwrap();
        let mut stream = Http2Stream::new(Inbox::new(request.into_body(), None), outbox);
        let writing = async {
            for _ in 0..PIECES {
                stream.write_all(&[7; PIECE]).await.unwrap();
            }
            stream.shutdown().await.unwrap();
        };
        let reading = async {
            let (mut body, mut frames) = (response.await.unwrap().into_body(), Vec::new());
            while let Some(frame) = body.data().await {
                frames.push(frame.unwrap().len());
            }
            frames
        };
        let ((), frames) = tokio::join!(writing, reading);
        assert_eq!(frames.iter().sum::<usize>(), PIECES * PIECE);
        assert!(frames.iter().all(|length| *length == PIECE || *length == 0), "{frames:?}");
    }

    /// A read of 0 bytes is the end.
    #[tokio::test]
    async fn a_read_into_a_buffer_that_has_bytes_already_waits_for_more() {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut sender, client) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(client);
        let (_response, mut body) = sender.send_request(Request::new(()), false).unwrap();
        let mut server = h2::server::handshake(far).await.unwrap();
        let (request, mut respond) = server.accept().await.unwrap().unwrap();
        tokio::spawn(async move { poll_fn(|cx| server.poll_closed(cx)).await });
        let outbox = respond.send_response(Response::new(()), false).unwrap();
        let inbox = Inbox::new(request.into_body(), None);
        let mut stream = Http2Stream::new(inbox.clone(), outbox);
        let mut bytes = [0; 16];
        let mut buf = ReadBuf::new(&mut bytes);
        buf.put_slice(b"before");
        let read =
            inbox.keep_taking(poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_read(cx, &mut buf))));
        assert!(read.await.is_pending());
        body.send_data(Bytes::from_static(b" after"), true).unwrap();
        inbox.keep_taking(poll_fn(|cx| Pin::new(&mut stream).poll_read(cx, &mut buf))).await.unwrap();
        assert_eq!(buf.filled(), b"before after");
    }

    /// With large windows and an unread connection, the queue is bounded in pieces as well as in bytes.
    #[tokio::test]
    async fn a_stream_queues_few_pieces_however_small_they_are() {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut sender, mut client) = h2::client::Builder::new()
            .initial_window_size(1 << 30)
            .handshake::<_, Bytes>(near)
            .await
            .unwrap();
        let (response, _body) = sender.send_request(Request::new(()), false).unwrap();
        let answering = async {
            let mut server = h2::server::Builder::new().handshake::<_, Bytes>(far).await.unwrap();
            let (request, mut respond) = server.accept().await.unwrap().unwrap();
            let outbox = respond.send_response(Response::new(()), false).unwrap();
            let server = tokio::spawn(async move { poll_fn(|cx| server.poll_closed(cx)).await });
            response.await.unwrap();
            (request, outbox, server)
        };
        let (request, outbox, server) = tokio::select! {
            answered = answering => answered,
            _ = &mut client => panic!("it ended"),
        };
        let mut stream = Http2Stream::new(Inbox::new(request.into_body(), None), outbox);
        let mut written = 0;
        while let Ok(sent) = timeout(Duration::from_millis(100), stream.write_all(b"x")).await {
            sent.unwrap();
            written += 1;
            assert!(written < 100_000, "nothing bounds the pieces");
        }
        assert!(stream.queue.pieces() <= PIECES + 1, "{} pieces", stream.queue.pieces());
        server.abort();
    }
}
