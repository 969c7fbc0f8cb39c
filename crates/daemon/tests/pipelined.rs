//! Requests that are sent one behind the other, to hyper over a stream with a deadline.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use postern_daemon::client_stream::ClientStream;
use postern_daemon::exchange::{Exchange, Patience};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep};

/// A request that hyper reads to its end although nothing takes its body, and whose answer has none: hyper may go on to
/// the next one before the answer is written. Of 64 bytes, so that none is cut by the end of a buffer.
const REQUEST: &[u8; 64] = b"POST / HTTP/1.1\r\nHost: a\r\nX-A: 987654321\r\nContent-Length: 1\r\n\r\nx";
const NUMBER: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);

/// A server whose answers are counted, and the client's end of its connection.
fn served() -> (DuplexStream, Arc<AtomicUsize>) {
    let (far, near) = duplex(4096);
    let exchange = Exchange::new(Patience { answer: PATIENCE, stream: PATIENCE });
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let stream = ClientStream::new(near, exchange.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (exchange, counted) = (exchange.clone(), Arc::clone(&counted));
        async move {
            let work = async {
                counted.fetch_add(1, Ordering::Relaxed);
                drop(request); // its body is there until the answer is, as in our services
                Response::new(Empty::<Bytes>::new())
            };
            Ok::<_, Infallible>(exchange.answer(work).await)
        }
    });
    let mut http = http1::Builder::new();
    let connection = http.half_close(true).serve_connection(TokioIo::new(stream), service);
    tokio::spawn(connection);
    (far, count)
}

#[tokio::test(start_paused = true)]
async fn they_are_answered_only_as_far_as_the_client_reads() {
    let (mut far, count) = served();
    let began = Instant::now();
    let flooding = async { while far.write_all(&REQUEST.repeat(64)).await.is_ok() {} };
    flooding.await;
    assert_eq!(began.elapsed().as_secs(), 10, "the server gives up when nothing has been read for so long");
    let answered = count.load(Ordering::Relaxed);
    assert!((10..200).contains(&answered), "{answered} answers for 4 KiB of room");
}

#[tokio::test(start_paused = true)]
async fn all_of_them_are_answered_when_the_client_reads_late() {
    let (far, count) = served();
    let (mut reader, mut writer) = tokio::io::split(far);
    let writing = tokio::spawn(async move {
        writer.write_all(&REQUEST.repeat(NUMBER)).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut answers = Vec::new();
    while reader.read_buf(&mut answers).await.unwrap() > 0 {
        sleep(Duration::from_millis(100)).await;
    }
    let answers = String::from_utf8(answers).unwrap();
    assert_eq!((answers.matches("HTTP/1.1 200 OK").count(), count.load(Ordering::Relaxed)), (NUMBER, NUMBER));
    writing.await.unwrap();
}
