//! Passes only a service's own answers to the client, and discards what hyper writes on its own account.
//!
//! To a request it cannot parse, hyper answers with a bare status line and closes. Every refusal of ours has Proxy-Status and a body
//! with what to do next, so bytes that hyper writes on its own account are discarded here, and the connection's task writes its own
//! last answer once hyper has returned the connection.
//!
//! [`Exchange`] distinguishes the two: while no answer is in progress, hyper has no answer of the service to write.

use crate::exchange::Exchange;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that discards writes while no answer is in progress.
#[derive(Debug)]
pub struct AnswersOnly<S> {
    stream: S,
    exchange: Exchange,
}

impl<S> AnswersOnly<S> {
    /// Discards what is written to `stream` while `exchange` is idle.
    pub const fn new(stream: S, exchange: Exchange) -> Self {
        Self { stream, exchange }
    }

    /// The stream, which no longer discards anything.
    pub fn into_inner(self) -> S {
        self.stream
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
        if self.exchange.is_idle() {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.exchange.is_idle() {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
    use crate::client_stream::ClientStream;
    use crate::exchange::Patience;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    fn exchange() -> Exchange {
        let long = Duration::from_secs(3600);
        Exchange::new(Patience { answer: long, stream: long })
    }

    #[tokio::test]
    async fn only_writes_during_an_answer_are_passed_on() {
        let (mut far, near) = duplex(1024);
        let state = exchange();
        let mut stream = AnswersOnly::new(ClientStream::new(near, state.clone()), state.clone());
        stream.write_all(b"before ").await.unwrap();
        let guard = state.begin().await;
        stream.write_all(b"head ").await.unwrap();
        stream.flush().await.unwrap(); // a flush in the middle of an answer ends nothing
        stream.write_all(b"body ").await.unwrap();
        drop(guard);
        stream.write_all(b"end.").await.unwrap(); // still in hyper's buffer when the body was dropped
        stream.flush().await.unwrap();
        stream.write_all(b"after").await.unwrap();
        drop(state.begin().await);
        stream.write_all(b"again").await.unwrap();
        let next = state.begin().await; // the next request came before the flush
        stream.flush().await.unwrap();
        stream.write_all(b" and again").await.unwrap();
        drop((stream, next));
        let mut received = String::new();
        far.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "head body end.again and again");
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
        let state = exchange();
        let service = {
            let state = state.clone();
            service_fn(move |request: Request<Incoming>| {
                let state = state.clone();
                Box::pin(async move {
                    let guard = state.begin().await;
                    if patient {
                        let _ = request.into_body().collect().await;
                    }
                    Ok::<_, Infallible>(Response::new(guard.with(Full::<Bytes>::from("x".repeat(length)))))
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
            let mut connection = http.half_close(true).serve_connection(
                TokioIo::new(AnswersOnly::new(ClientStream::new(near, state.clone()), state)),
                service,
            );
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
