//! An issuer small enough to be read: a directory and blind signatures, or the refusal of the day.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use postern_token::{
    AMORTIZED_REQUEST_MEDIA_TYPE, AMORTIZED_RESPONSE_MEDIA_TYPE, AmortizedRequest, DIRECTORY_PATH, Directory,
    DirectoryKey, GENERIC_REQUEST_MEDIA_TYPE, GENERIC_RESPONSE_MEDIA_TYPE, SigningKey, TokenRequest,
    TokenResponse, UnixSeconds, parse_generic_request, serialize_generic_response,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

pub struct Issuer {
    pub address: SocketAddr,
    /// The first is preferred, and the one that a gateway's challenge names.
    pub keys: Mutex<Vec<Arc<SigningKey>>>,
    /// Those that it has forgotten, which are not new to its clients.
    forgotten: Mutex<Vec<Arc<SigningKey>>>,
    not_after: Mutex<Option<UnixSeconds>>,
    /// The time when the first key takes over, if still ahead: the second signs until then.
    takes_over: Mutex<Option<UnixSeconds>>,
    /// The lead of the issuer's clock over this machine's, in seconds.
    ahead: AtomicI64,
    refusal: Mutex<Option<Refusal>>,
    pub signed: AtomicUsize,
    /// Requests for tokens, alone or in batches, that were read.
    pub requests: AtomicUsize,
    /// And those that were refused, by the refusal of the day.
    pub refused: AtomicUsize,
    /// The status of its answer to a batch, if it takes none.
    pub no_batches: Mutex<Option<u16>>,
    /// Tokens that it still issues in generic batches.
    pub batched_at_most: AtomicUsize,
    /// The batch limit that the directory advertises.
    pub batch_limit: Mutex<Option<u32>>,
    pub directories: AtomicUsize,
    pub api_keys: Mutex<Vec<String>>,
    /// The URI of signing requests in the directory.
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

/// Returns a key that no running test has. One that a test has dropped is used again, because making an RSA key takes a tenth of a
/// second of CPU.
pub fn key() -> Arc<SigningKey> {
    static MADE: Mutex<Vec<Arc<SigningKey>>> = Mutex::new(Vec::new());
    let is_free = |key: &&Arc<SigningKey>| Arc::strong_count(key) == 1;
    if let Some(free) = MADE.lock().iter().find(is_free) {
        return free.clone();
    }
    loop {
        let new = Arc::new(SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap());
        let mut made = MADE.lock();
        // A request names its key by one byte of the id, so an issuer has no two keys with the same one.
        if made.iter().all(|other| other.id().truncated() != new.id().truncated()) {
            made.push(new.clone());
            return new;
        }
    }
}

impl Issuer {
    pub async fn start() -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let issuer = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            keys: Mutex::new(vec![key()]),
            forgotten: Mutex::default(),
            not_after: Mutex::default(),
            takes_over: Mutex::default(),
            ahead: AtomicI64::new(0),
            refusal: Mutex::default(),
            signed: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            no_batches: Mutex::default(),
            batched_at_most: AtomicUsize::new(usize::MAX),
            batch_limit: Mutex::default(),
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
        let old = std::mem::replace(&mut *self.keys.lock(), vec![key()]);
        self.forgotten.lock().extend(old);
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
        // Also of one that is refused: a connection whose body is left unread is reset, perhaps before the answer is read.
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let _running = self.pause.lock().await;
        if let Some(refusal) = self.refusal_of_the_day() {
            self.refused.fetch_add(1, Ordering::SeqCst);
            let mut response = response(refusal.status, refusal.text.into());
            if let Some(seconds) = refusal.retry_after {
                response.headers_mut().insert("retry-after", seconds.into());
            }
            return response;
        }
        assert_eq!(head.uri.path(), "/token-request");
        self.requests.fetch_add(1, Ordering::SeqCst);
        let media_type = head.headers["content-type"].to_str().unwrap().to_owned();
        let refused = *self.no_batches.lock();
        match (media_type.as_str(), refused) {
            (AMORTIZED_REQUEST_MEDIA_TYPE | GENERIC_REQUEST_MEDIA_TYPE, Some(status)) => {
                response(status, b"no batches".to_vec())
            }
            (AMORTIZED_REQUEST_MEDIA_TYPE, None) => self.amortized(&AmortizedRequest::parse(&body).unwrap()),
            (GENERIC_REQUEST_MEDIA_TYPE, None) => self.generic(&parse_generic_request(&body).unwrap()),
            _ => match self.sign(&TokenRequest::parse(&body).unwrap()) {
                Some(signature) => response(200, signature.as_bytes().to_vec()),
                None => response(422, b"unknown key".to_vec()),
            },
        }
    }

    fn sign(&self, request: &TokenRequest) -> Option<TokenResponse> {
        let keys = self.keys.lock().clone();
        let signed = keys.iter().find_map(|key| key.sign(request).ok());
        self.signed.fetch_add(usize::from(signed.is_some()), Ordering::SeqCst);
        signed
    }

    fn amortized(&self, request: &AmortizedRequest) -> Response<Full<Bytes>> {
        let keys = self.keys.lock().clone();
        let Some(signed) = keys.iter().find_map(|key| key.sign_batch(request).ok()) else {
            return response(422, b"unknown key".to_vec());
        };
        self.signed.fetch_add(request.count(), Ordering::SeqCst);
        typed(response(200, signed.serialize()), AMORTIZED_RESPONSE_MEDIA_TYPE)
    }

    fn generic(&self, requests: &[TokenRequest]) -> Response<Full<Bytes>> {
        let answer = |request: &TokenRequest| {
            let at_most = self.batched_at_most.load(Ordering::SeqCst);
            self.batched_at_most.store(at_most.saturating_sub(1), Ordering::SeqCst);
            (at_most > 0).then(|| Some((request.token_type(), self.sign(request)?))).flatten()
        };
        let responses: Vec<_> = requests.iter().map(answer).collect();
        let status = match responses.iter().flatten().count() {
            0 => return response(400, b"none".to_vec()),
            issued if issued < responses.len() => 206,
            _ => 200,
        };
        typed(response(status, serialize_generic_response(&responses)), GENERIC_RESPONSE_MEDIA_TYPE)
    }

    fn directory(&self) -> Directory {
        let not_after = *self.not_after.lock();
        let (keys, takes_over) = (self.keys.lock(), *self.takes_over.lock());
        let listed = |(index, key): (usize, &Arc<SigningKey>)| {
            DirectoryKey::new(
                key.token_type(),
                key.public_key(),
                takes_over.filter(|_| index == 0),
                not_after,
            )
        };
        let token_keys = keys.iter().enumerate().map(listed).collect();
        Directory {
            issuer_request_uri: self.request_uri.lock().clone(),
            token_keys,
            batch_limit: *self.batch_limit.lock(),
            revoked: Vec::new(),
        }
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

fn typed(mut response: Response<Full<Bytes>>, media_type: &'static str) -> Response<Full<Bytes>> {
    response.headers_mut().insert("content-type", media_type.parse().unwrap());
    response
}

fn response(status: u16, body: Vec<u8>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}
