//! Passes only the gateway's own answers to the client, and discards what hyper writes on its own account.
//!
//! To a request it cannot parse, hyper answers with a bare status line and closes. Every refusal of the gateway has
//! Proxy-Status and a body with what to do next, so bytes that hyper writes on its own account are discarded here, and
//! the connection's task writes the answer of `deny` once hyper has returned the connection.
//!
//! [`AnswerState`] distinguishes the two. An answer is in progress from the moment a request reaches the service until
//! its answer's body is dropped and hyper, having written everything, flushes the stream. At any other time hyper has
//! no answer of the gateway to write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const FLUSHING: u8 = 2;

/// Whether an answer is in progress; shared by a connection's stream and its service.
#[derive(Clone, Default)]
pub(crate) struct AnswerState(Arc<AtomicU8>);

/// Marks an answer as in progress until it is dropped; it is stored with the answer's body.
pub(crate) struct AnswerGuard(AnswerState);

impl AnswerState {
    /// Whether an answer is in progress: hyper has not written all of it.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.0.load(Ordering::Relaxed) != IDLE
    }

    /// A request has reached the service.
    pub(crate) fn begin(&self) -> AnswerGuard {
        self.0.store(ANSWERING, Ordering::Relaxed);
        AnswerGuard(self.clone())
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.0.store(FLUSHING, Ordering::Relaxed);
    }
}

/// A stream that discards writes while no answer is in progress.
pub(crate) struct AnswersOnly<S> {
    stream: S,
    state: AnswerState,
}

impl<S> AnswersOnly<S> {
    pub(crate) fn new(stream: S, state: AnswerState) -> Self {
        Self { stream, state }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn is_idle(&self) -> bool {
        self.state.0.load(Ordering::Relaxed) == IDLE
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnswersOnly<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnswersOnly<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_idle() {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_idle() {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream when nothing is left in its own buffer, so an ended state is over here.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.0.load(Ordering::Relaxed) == FLUSHING {
            self.state.0.store(IDLE, Ordering::Relaxed);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// The connection's task ends the stream, after the last answer.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body::{Body, Frame, SizeHint};
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn only_writes_during_an_answer_are_passed_on() {
        let (mut far, near) = duplex(1024);
        let state = AnswerState::default();
        let mut stream = AnswersOnly::new(near, state.clone());
        stream.write_all(b"before ").await.unwrap();
        let guard = state.begin();
        stream.write_all(b"head ").await.unwrap();
        stream.flush().await.unwrap(); // a flush in the middle of an answer ends nothing
        stream.write_all(b"body ").await.unwrap();
        drop(guard);
        stream.write_all(b"end.").await.unwrap(); // still in hyper's buffer when the body was dropped
        stream.flush().await.unwrap();
        stream.write_all(b"after").await.unwrap();
        drop(state.begin());
        stream.write_all(b"again").await.unwrap();
        let next = state.begin(); // the next request came before the flush
        stream.flush().await.unwrap();
        stream.write_all(b" and again").await.unwrap();
        drop((stream, next));
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "head body end.again and again");
    }

    /// An answer of the service's, and with it its state.
    struct GuardedBody(Full<Bytes>, #[expect(dead_code, reason = "it is there to be dropped")] AnswerGuard);

    impl Body for GuardedBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Pin::new(&mut self.0).poll_frame(cx)
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_end_stream()
        }

        fn size_hint(&self) -> SizeHint {
            self.0.size_hint()
        }
    }

    /// What a client gets from hyper, through a pipe of `room` bytes, for `sent`; every answer has `length` bytes of
    /// body. `patient` services read a request's body before they answer it.
    async fn conversation(
        sent: &'static [&'static [u8]],
        room: usize,
        length: usize,
        patient: bool,
    ) -> String {
        let (far, near) = duplex(room);
        let state = AnswerState::default();
        let service = {
            let state = state.clone();
            service_fn(move |request: Request<Incoming>| {
                let guard = state.begin();
                Box::pin(async move {
                    if patient {
                        let _ = request.into_body().collect().await;
                    }
                    Ok::<_, Infallible>(Response::new(GuardedBody(Full::from("x".repeat(length)), guard)))
                })
            })
        };
        let (mut reader, mut writer) = tokio::io::split(far);
        let client = async {
            let writing = async {
                for part in sent {
                    // The server may have closed the connection: what it sent before counts.
                    let _ = writer.write_all(part).await;
                    tokio::task::yield_now().await;
                }
            };
            let mut received = String::new();
            let (_, read) = tokio::join!(writing, reader.read_to_string(&mut received));
            read.unwrap();
            received
        };
        let server = async move {
            let mut http = http1::Builder::new();
            let mut connection =
                http.half_close(true).serve_connection(TokioIo::new(AnswersOnly::new(near, state)), service);
            // A service that answers without reading may have made hyper close before the broken request.
            let ended = (&mut connection).await;
            assert!(ended.as_ref().map_or_else(hyper::Error::is_parse, |()| !patient), "{ended:?}");
        };
        tokio::join!(client, server).0
    }

    const GOOD: &[u8] = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &[u8] = b"POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";
    const BROKEN: &[u8] = b"\0\0\r\n\r\n";

    #[tokio::test]
    async fn hypers_own_answers_are_never_received_and_the_services_always_are() {
        let cases: &[(&[&[u8]], usize)] = &[
            (&[BROKEN], 0),
            (&[GOOD, BROKEN], 1),
            (&[b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n\0\0\r\n\r\n"], 1),
            (&[GOOD, GOOD, GOOD, BROKEN], 3),
            (&[POST, b"body", GOOD, BROKEN], 2),
            (&[POST, b"body", BROKEN], 1),
            (&[POST, b"body\0\0\r\n\r\n"], 1),
            (&[POST, b"bo", b"dy\0\0\r\n\r\n"], 1),
            (&[b"POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody\0\0\r\n\r\n"], 1),
        ];
        for (case, &(sent, answers)) in cases.iter().enumerate() {
            for (room, length) in [(1 << 20, 5), (16, 5), (16, 0), (64, 20_000), (1 << 20, 200_000)] {
                for patient in [true, false] {
                    let received = conversation(sent, room, length, patient).await;
                    let case = format!("case {case}, room {room}, length {length}, patient {patient}");
                    let answered = received.matches("HTTP/1.1 200 OK").count();
                    assert!(
                        answered == answers || (!patient && 0 < answered && answered < answers),
                        "{case}: {answered}"
                    );
                    assert_eq!(received.matches("HTTP/1.1").count(), answered, "{case}");
                    assert_eq!(received.matches('x').count(), answered * length, "{case}");
                }
            }
        }
    }
}
