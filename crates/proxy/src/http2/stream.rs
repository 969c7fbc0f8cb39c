//! A stream as a relay's side.

use super::PIECE;
use super::inbox::{Inbox, kind};
use super::queue::Queue;
use crate::reset::Reset;
use bytes::Bytes;
use h2::{Reason, SendStream};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many pieces of a stream may wait to be sent.
const PIECES: usize = 64;

/// Both directions of a stream whose headers were exchanged. Its task has to [keep its inbox taking](Inbox::keep_taking).
#[derive(Debug)]
pub struct Http2Stream {
    inbox: Inbox,
    outbox: SendStream<Bytes>,
    queue: Queue,
    resets: AtomicBool,
}

impl Http2Stream {
    /// A stream of what `inbox` receives and `outbox` sends.
    #[must_use]
    pub fn new(inbox: Inbox, outbox: SendStream<Bytes>) -> Self {
        Self { inbox, outbox, queue: Queue::default(), resets: AtomicBool::new(false) }
    }

    /// How many bytes may be queued now: the peer's window, as far as the queue has room. While something is queued it is `wanted`
    /// or nothing, for a small piece costs as much as a large one.
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
        // The only other error is a stream that is over.
        self.outbox.send_data(bytes, is_end).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Ready when the peer has reset the stream, or its connection is gone.
    pub fn poll_broken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.outbox.poll_reset(cx).map(|_| ())
    }

    /// Ready when all that was queued is written.
    pub fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.queue.poll_at_most(0, cx)
    }

    /// Ends the sending side with trailer fields.
    ///
    /// # Errors
    /// When the stream is over.
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

    /// The connection's task writes what is queued.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send(Bytes::new(), true))
    }
}

/// RFC 9113, section 8.5: a TCP connection that broke is a stream error of type CONNECT_ERROR.
impl Reset for Http2Stream {
    fn reset(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }

    /// The connection's task has written all of it: a reset discards only what is queued.
    fn is_delivered(&self) -> bool {
        self.queue.pieces() == 0
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        if self.resets.load(Ordering::Relaxed) {
            self.outbox.send_reset(Reason::CONNECT_ERROR);
        }
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

    /// The room of the queue is no multiple of a piece.
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

    /// The windows are large, and nothing reads the connection: what is queued is bounded in pieces as in bytes.
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
