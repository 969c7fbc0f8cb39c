//! A gateway that follows the rules, unless its script states otherwise, and records every token that it ever saw.

use super::issuer::Issuer;
use parking_lot::Mutex;
use postern_token::header::{Challenge, Presentation, parse_authorization};
use postern_token::{ChallengeDigest, Mark, SigningKey, Token, TokenChallenge, TokenType, VerifyingKey};
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The number of the last challenge, and how each is made of its number.
type Tags = (u8, fn(u8) -> TokenChallenge);

pub struct Gateway {
    pub address: SocketAddr,
    tls: Option<TlsAcceptor>,
    issuer: Arc<Issuer>,
    challenge: Mutex<TokenChallenge>,
    /// Challenges of before, whose tokens it still takes.
    older: Mutex<Vec<ChallengeDigest>>,
    /// In each refusal it names the next of these challenges, and takes no token.
    tags: Mutex<Option<Tags>>,
    names_key: Mutex<bool>,
    /// The key it requires and accepts, where that is not the issuer's first: a gateway that is behind.
    pinned: Mutex<Option<Arc<SigningKey>>>,
    /// A key that it accepts beside the one that its challenge names: one that the issuer still lists.
    accepted: Mutex<Option<Arc<SigningKey>>>,
    max_age: Mutex<u64>,
    mood: Mutex<Mood>,
    /// The delay of the answer to the next presentation of a token.
    held: Mutex<Option<Duration>>,
    script: Mutex<VecDeque<Step>>,
    spent: Mutex<HashSet<Vec<u8>>>,
    /// Every token presented, in order.
    tokens: Mutex<Vec<Vec<u8>>>,
    /// Every request head, as it came.
    heads: Mutex<Vec<String>>,
    /// The text before our challenge in Proxy-Authenticate.
    preamble: Mutex<String>,
    /// Connections that it has accepted.
    dials: AtomicUsize,
}

/// The gateway's treatment of every request, with or without a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// 503, as while the store is away.
    Unavailable,
    /// 429, as to a source above its rate.
    Limiting,
    /// 508, as where its egress leads back to it.
    Circling,
    /// Accepts connections and sends nothing until it recovers.
    Frozen,
    /// Closes connections without an answer.
    Closing,
}

/// A wrong treatment of one presentation of a token.
#[derive(Clone)]
pub enum Step {
    /// Close without an answer.
    Close,
    /// Answer this and close.
    Raw(Vec<u8>),
    /// 407, as for a token that is spent.
    Spent,
    /// 407, as for a token that is no good.
    Bad,
    /// 200 and these bytes in one write.
    OpenWith(&'static [u8]),
}

pub fn challenge(origin: &str) -> TokenChallenge {
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &[origin]).unwrap()
}

/// A challenge for proxy.example with the mark of this number.
pub fn marked(number: u8) -> TokenChallenge {
    let second = Mark::new([number; 16]).second_name("proxy.example");
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example", &second]).unwrap()
}

impl Gateway {
    pub async fn start(issuer: &Arc<Issuer>) -> Arc<Self> {
        Self::start_with(issuer, None).await
    }

    pub async fn start_with(issuer: &Arc<Issuer>, tls: Option<TlsAcceptor>) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let gateway = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            tls,
            issuer: issuer.clone(),
            challenge: Mutex::new(challenge("proxy.example")),
            older: Mutex::default(),
            tags: Mutex::default(),
            names_key: Mutex::new(true),
            pinned: Mutex::default(),
            accepted: Mutex::default(),
            max_age: Mutex::new(3600),
            mood: Mutex::new(Mood::Well),
            held: Mutex::default(),
            script: Mutex::default(),
            spent: Mutex::default(),
            tokens: Mutex::default(),
            heads: Mutex::default(),
            preamble: Mutex::default(),
            dials: AtomicUsize::new(0),
        });
        let serving = gateway.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let gateway = serving.clone();
                gateway.dials.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    match &gateway.tls {
                        None => gateway.serve(stream).await,
                        Some(tls) => gateway.serve(tls.accept(stream).await.unwrap()).await,
                    }
                });
            }
        });
        gateway
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn then(&self, step: Step) {
        self.script.lock().push_back(step);
    }

    pub fn ask_for(&self, challenge: TokenChallenge) {
        *self.challenge.lock() = challenge;
    }

    /// Takes tokens for this challenge, too.
    pub fn take_too(&self, older: &TokenChallenge) {
        self.older.lock().push(older.digest());
    }

    /// From now on it takes no token, and names another mark in each refusal; `None` ends it.
    pub fn tag(&self, first: Option<u8>) {
        *self.tags.lock() = first.map(|first| (first, marked as _));
    }

    /// From now on it takes no token, and names another origin in each refusal.
    pub fn rename(&self) {
        *self.tags.lock() = Some((0, |number| challenge(&format!("proxy-{number}.example"))));
    }

    pub fn set_mood(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    /// From now on its challenge names only this key, whatever the issuer has.
    pub fn stay_with(&self, key: Arc<SigningKey>) {
        *self.pinned.lock() = Some(key);
    }

    /// It has fetched the directory.
    pub fn catch_up(&self) {
        *self.pinned.lock() = None;
    }

    /// From now on it accepts tokens of this key as well.
    pub fn accept(&self, key: Arc<SigningKey>) {
        *self.accepted.lock() = Some(key);
    }

    /// The next presentation of a token is answered after `time`, as for a target that is slow.
    pub fn hold_next(&self, time: Duration) {
        *self.held.lock() = Some(time);
    }

    pub fn set_max_age(&self, seconds: u64) {
        *self.max_age.lock() = seconds;
    }

    fn key(&self) -> Arc<SigningKey> {
        self.pinned.lock().clone().unwrap_or_else(|| self.issuer.key())
    }

    /// Requests without a token.
    pub fn probes(&self) -> usize {
        self.heads().len() - self.tokens().len()
    }

    pub fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }

    pub fn name_no_key(&self) {
        *self.names_key.lock() = false;
    }

    pub fn begin_header_with(&self, preamble: &str) {
        *self.preamble.lock() = preamble.to_owned();
    }

    pub fn tokens(&self) -> Vec<Vec<u8>> {
        self.tokens.lock().clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().clone()
    }

    /// Fails when any token ever came twice.
    pub fn expect_no_token_twice(&self) {
        let tokens = self.tokens();
        let different: HashSet<_> = tokens.iter().collect();
        assert_eq!(different.len(), tokens.len(), "a token came twice");
    }

    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        let Some((head, early)) = read_head(&mut stream).await else { return };
        // Before a test can see the token: the mood that the test then sets is that of later requests.
        let mut mood = *self.mood.lock();
        let token = self.record(&head);
        // Like a process that is stopped and continued: it answers then what arrived in between.
        while mood == Mood::Frozen {
            tokio::time::sleep(Duration::from_millis(5)).await;
            mood = *self.mood.lock();
        }
        match mood {
            Mood::Well | Mood::Frozen => {}
            Mood::Unavailable => {
                let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 17\r\n\r\nThe store is away";
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
            Mood::Limiting => {
                let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nContent-Length: 12\r\n\r\nToo many of.";
                let _ = stream.write_all(answer.as_bytes()).await;
                return;
            }
            Mood::Circling => {
                let _ = stream.write_all(b"HTTP/1.1 508 Loop Detected\r\nContent-Length: 0\r\n\r\n").await;
                return;
            }
            Mood::Closing => return,
        }
        if token.is_some()
            && let Some(time) = { self.held.lock().take() }
        {
            tokio::time::sleep(time).await;
        }
        let step = if token.is_some() { self.script.lock().pop_front() } else { None };
        let answer = match step {
            Some(Step::Close) => return,
            Some(Step::Raw(bytes)) => Err(bytes),
            Some(Step::Spent) => Err(self.refusal("token already spent")),
            Some(Step::Bad) => Err(self.refusal("no good")),
            Some(Step::OpenWith(bytes)) => Ok(bytes),
            None => self.judge(token).map(|()| &b""[..]),
        };
        match answer {
            Err(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.shutdown().await;
            }
            Ok(extra) => {
                let Some(mut target) = dial(&head).await else {
                    let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n").await;
                    return;
                };
                let opened = [b"HTTP/1.1 200 OK\r\n\r\n", extra].concat();
                stream.write_all(&opened).await.unwrap();
                target.write_all(&early).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut target).await;
            }
        }
    }

    fn record(&self, head: &str) -> Option<Token> {
        self.heads.lock().push(head.to_owned());
        let value = super::field(head, "proxy-authorization")?;
        let Ok(Presentation::Token(token)) = parse_authorization(value.as_bytes()) else {
            panic!("no token: {value}")
        };
        self.tokens.lock().push(token.as_bytes().to_vec());
        Some(token)
    }

    fn judge(&self, token: Option<Token>) -> Result<(), Vec<u8>> {
        let Some(token) = token else { return Err(self.refusal("no token")) };
        let digest = token.challenge_digest();
        let is_asked_for = digest == self.challenge.lock().digest() || self.older.lock().contains(&digest);
        if !is_asked_for || self.tags.lock().is_some() {
            return Err(self.refusal("another challenge"));
        }
        let accepted = self.accepted.lock().clone();
        let verifies =
            |key: Arc<SigningKey>| VerifyingKey::from_spki(key.public_key()).unwrap().verify(&token).is_ok();
        if !accepted.into_iter().chain([self.key()]).any(verifies) {
            return Err(self.refusal("unknown key"));
        }
        if !self.spent.lock().insert(token.as_bytes().to_vec()) {
            return Err(self.refusal("token already spent"));
        }
        Ok(())
    }

    fn refusal(&self, details: &str) -> Vec<u8> {
        if let Some((number, named)) = self.tags.lock().as_mut() {
            *number += 1;
            *self.challenge.lock() = named(*number);
        }
        let bytes = self.challenge.lock().serialize();
        let token_key = self.names_key.lock().then(|| self.key().public_key().to_vec());
        let value = Challenge { bytes, token_key, max_age: Some(*self.max_age.lock()) }.format();
        let preamble = self.preamble.lock().clone();
        format!(
            "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: {preamble}{value}\r\n\
             Proxy-Status: fake; error=http_request_denied; details=\"{details}\"\r\nContent-Length: {}\r\n\r\n{details}",
            details.len()
        )
        .into_bytes()
    }
}

/// ChallengeDigest of the present challenge, for tests that compare.
pub fn digest_in(token: &[u8]) -> ChallengeDigest {
    Token::parse(token).unwrap().challenge_digest()
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let early = bytes.split_off(end + 4);
            return Some((String::from_utf8(bytes).unwrap(), early));
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

/// The target's port on 127.0.0.1, whatever its name is.
async fn dial(head: &str) -> Option<TcpStream> {
    let target = head.split(' ').nth(1).unwrap();
    let port = target.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    TcpStream::connect(("127.0.0.1", port)).await.ok()
}
