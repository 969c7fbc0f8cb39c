use super::*;
use crate::exchange::Patience;
use ::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than the pipe of 16 bytes.
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

/// Reads `size` bytes at a time with a pause before each, until the other side closes; returns the number of bytes.
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

/// Writes LONG to a peer that reads `size` bytes every `pause` seconds; returns the outcome and the seconds that the write
/// took.
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
    assert_eq!(written(16, 3, false).await, (Ok(200), 36)); // takes longer than the patience, but no pause does
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

// ---- Answers that hyper generates ----

fn exchange() -> Exchange {
    let long = Duration::from_secs(3600);
    Exchange::new(Patience { answer: long, stream: long })
}

#[tokio::test]
async fn only_writes_during_an_answer_are_passed_on() {
    let (mut far, near) = duplex(1024);
    let state = exchange();
    let mut stream = ClientStream::answers_only(near, state.clone());
    stream.write_all(b"before ").await.unwrap();
    let guard = state.begin().await;
    stream.write_all(b"head ").await.unwrap();
    stream.flush().await.unwrap(); // a flush in the middle of an answer does not end it
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

/// Returns the bytes that a client receives from hyper for `sent`, through a pipe of `room` bytes; every answer has `length`
/// bytes of body. `patient` services read a request's body before they answer it.
async fn conversation(sent: &'static [&'static [u8]], room: usize, length: usize, patient: bool) -> String {
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
                // The server may have closed the connection; the bytes that it sent before count.
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
        let mut connection = http
            .half_close(true)
            .serve_connection(TokioIo::new(ClientStream::answers_only(near, state)), service);
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
