//! A collector that takes spans and keeps their bytes, to be searched: what OTLP carries is plain protobuf. What the spans
//! mean is tested with a real Jaeger (tests/jaeger.rs); this one is there on every machine.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;

/// A collector, listening.
pub struct Collector {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request| take(request, Arc::clone(&kept)));
                // A connection ends when the gateway does.
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, received }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was sent, as it was sent.
    pub fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }
}

async fn take(
    request: Request<Incoming>,
    kept: Arc<Mutex<Vec<u8>>>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let head = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
    if let Ok(body) = request.into_body().collect().await {
        let mut kept = kept.lock().unwrap();
        kept.extend_from_slice(head.as_bytes());
        kept.extend_from_slice(&body.to_bytes());
    }
    // No bytes are an ExportTraceServiceResponse without fields: everything was taken.
    let mut response = Response::new(Empty::new());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    Ok(response)
}
