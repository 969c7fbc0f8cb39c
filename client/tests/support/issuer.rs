//! An issuer small enough to be read: a directory and blind signatures, or the refusal of the day.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use postern_token::{DIRECTORY_PATH, Directory, DirectoryKey, SigningKey, TokenRequest, UnixSeconds};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

pub struct Issuer {
    pub address: SocketAddr,
    /// The first is preferred, and the one that a gateway's challenge names.
    pub keys: Mutex<Vec<Arc<SigningKey>>>,
    not_after: Mutex<Option<UnixSeconds>>,
    /// When the first key takes over, if that is still to come: the second signs until then.
    takes_over: Mutex<Option<UnixSeconds>>,
    /// How far the clock is ahead of this machine's, in seconds.
    ahead: AtomicI64,
    refusal: Mutex<Option<Refusal>>,
    pub signed: AtomicUsize,
    pub directories: AtomicUsize,
    pub api_keys: Mutex<Vec<String>>,
    /// Where the directory sends requests to sign.
    pub request_uri: Mutex<String>,
    /// Requests to sign wait here while it is locked.
    pub pause: tokio::sync::Mutex<()>,
}

/// A status with a text and Retry-After, and how many times.
#[derive(Clone)]
pub struct Refusal {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub text: &'static str,
    pub times: usize,
}

pub fn key() -> Arc<SigningKey> {
    Arc::new(SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap())
}

impl Issuer {
    pub async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let issuer = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            keys: Mutex::new(vec![key()]),
            not_after: Mutex::default(),
            takes_over: Mutex::default(),
            ahead: AtomicI64::new(0),
            refusal: Mutex::default(),
            signed: AtomicUsize::new(0),
            directories: AtomicUsize::new(0),
            api_keys: Mutex::default(),
            request_uri: Mutex::new("/token-request".to_owned()),
            pause: tokio::sync::Mutex::default(),
        });
        let serving = issuer.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let issuer = serving.clone();
                let service = service_fn(move |request| {
                    let issuer = issuer.clone();
                    async move { Ok::<_, Infallible>(issuer.answer(request).await) }
                });
                let io = TokioIo::new(stream);
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
            }
        });
        issuer
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn key(&self) -> Arc<SigningKey> {
        self.keys.lock()[0].clone()
    }

    pub fn signed(&self) -> usize {
        self.signed.load(Ordering::SeqCst)
    }

    /// Publishes a new key; the old ones go on signing.
    pub fn rotate(&self) {
        self.keys.lock().insert(0, key());
    }

    /// Publishes a new key and forgets the old ones: they are neither listed nor sign.
    pub fn rotate_now(&self) {
        *self.keys.lock() = vec![key()];
    }

    /// Publishes a key that takes over at `moment`.
    pub fn publish_ahead(&self, moment: UnixSeconds) {
        self.keys.lock().insert(0, key());
        *self.takes_over.lock() = Some(moment);
    }

    /// The clock of this issuer is not this machine's.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.ahead.store(seconds, Ordering::SeqCst);
    }

    pub fn retire_at(&self, moment: UnixSeconds) {
        *self.not_after.lock() = Some(moment);
    }

    pub fn refuse(&self, status: u16, retry_after: Option<u64>, text: &'static str, times: usize) {
        *self.refusal.lock() = Some(Refusal { status, retry_after, text, times });
    }

    pub fn serve_again(&self) {
        *self.refusal.lock() = None;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() == DIRECTORY_PATH {
            self.directories.fetch_add(1, Ordering::SeqCst);
            let mut answer = response(200, self.directory().serialize());
            let ahead = self.ahead.load(Ordering::SeqCst);
            let shift = Duration::from_secs(ahead.unsigned_abs());
            let now = SystemTime::now();
            let now = if ahead < 0 { now - shift } else { now + shift };
            answer.headers_mut().insert("date", httpdate::fmt_http_date(now).parse().unwrap());
            return answer;
        }
        if let Some(key) = request.headers().get("authorization") {
            self.api_keys.lock().push(key.to_str().unwrap().to_owned());
        }
        let _running = self.pause.lock().await;
        if let Some(refusal) = self.refusal_of_the_day() {
            let mut response = response(refusal.status, refusal.text.into());
            if let Some(seconds) = refusal.retry_after {
                response.headers_mut().insert("retry-after", seconds.into());
            }
            return response;
        }
        assert_eq!(request.uri().path(), "/token-request");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let request = TokenRequest::parse(&body).unwrap();
        let keys = self.keys.lock().clone();
        match keys.iter().find_map(|key| key.sign(&request).ok()) {
            Some(signature) => {
                self.signed.fetch_add(1, Ordering::SeqCst);
                response(200, signature.0.to_vec())
            }
            None => response(422, b"unknown key".to_vec()),
        }
    }

    fn directory(&self) -> Directory {
        let not_after = *self.not_after.lock();
        let (keys, takes_over) = (self.keys.lock(), *self.takes_over.lock());
        let listed = |(index, key): (usize, &Arc<SigningKey>)| {
            DirectoryKey::type2(key.spki(), takes_over.filter(|_| index == 0), not_after)
        };
        let token_keys = keys.iter().enumerate().map(listed).collect();
        Directory { issuer_request_uri: self.request_uri.lock().clone(), token_keys }
    }

    fn refusal_of_the_day(&self) -> Option<Refusal> {
        let mut slot = self.refusal.lock();
        let refusal = slot.as_mut()?;
        if refusal.times == 0 {
            return None;
        }
        refusal.times -= 1;
        Some(refusal.clone())
    }
}

fn response(status: u16, body: Vec<u8>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}
