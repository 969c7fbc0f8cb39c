//! An issuer on its own loopback port, and raw bytes to talk to it.

use crate::openapi;
use postern_daemon::admin::ProcessContext;
use postern_daemon::drain::Drained;
use postern_daemon::tls::TlsConfig;
use postern_issuer::control::{AccountRequest, DeclaredAccount, KeyHash, ask};
use postern_issuer::{Config, Issuer};
use postern_token::{ChallengeDigest, DIRECTORY_PATH, Directory, IssuerKey, TokenType, UnixSeconds};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub const REQUEST_TYPE: &str = "application/private-token-request";
const DEADLINE: Duration = Duration::from_secs(20);

/// A certificate for localhost that vouches for itself, in files of `directory`.
pub fn certified(directory: &Path) -> TlsConfig {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    TlsConfig::of_files(certificate, key)
}

pub struct Running {
    pub address: SocketAddr,
    pub process: ProcessContext,
}

impl Running {
    pub async fn start(config: Config) -> Self {
        let process = ProcessContext::default();
        let issuer = Issuer::bind(config, &process).await.unwrap();
        let address = issuer.local_addr();
        tokio::spawn(issuer.run());
        Self { address, process }
    }

    pub async fn stop(self) {
        self.process.shutdown.drain();
        assert_eq!(self.process.shutdown.wait(DEADLINE).await, Drained::Finished);
    }

    /// Sends `bytes` and reads until the issuer closes. The answer is one that the API description has.
    pub async fn exchange(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        let answer = Answer::read(&mut stream).await;
        openapi::check(bytes, &answer);
        answer
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub async fn get(&self, fields: &str) -> Answer {
        self.exchange(&request("GET", DIRECTORY_PATH, fields, b"")).await
    }

    pub async fn post(&self, fields: &str, body: &[u8]) -> Answer {
        self.exchange(&post(fields, body)).await
    }

    pub async fn directory(&self) -> Directory {
        Directory::parse(&self.get("").await.body).unwrap()
    }

    pub async fn key(&self) -> IssuerKey {
        self.key_of(TokenType::BlindRsa2048).await
    }

    /// A request that the issuer signs.
    pub async fn good(&self) -> Vec<u8> {
        self.key().await.request(ChallengeDigest::of(b"challenge")).unwrap().0.serialize().to_vec()
    }

    pub async fn key_of(&self, token_type: TokenType) -> IssuerKey {
        let directory = self.directory().await;
        let key = directory.preferred(token_type, UnixSeconds::now()).unwrap();
        IssuerKey::from_public_key(token_type, &key.key_bytes().unwrap()).unwrap()
    }
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// One answer and the end of the connection.
    pub async fn read(stream: &mut TcpStream) -> Self {
        Self::parse(&rest(stream).await)
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| {
            panic!("not an answer: {:?}", String::from_utf8_lossy(bytes));
        });
        let head = String::from_utf8(bytes[..end + 2].to_vec()).unwrap();
        let status = head[9..12].parse().unwrap();
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// Returns the issuer's bytes until it closes.
pub async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    bytes
}

/// A request with `connection: close`. `fields` are whole lines.
pub fn request(method: &str, path: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

/// A POST to the default path, with a length and the right media type.
pub fn post(fields: &str, body: &[u8]) -> Vec<u8> {
    post_as(REQUEST_TYPE, fields, body)
}

/// A POST of a body of another media type.
pub fn post_as(media_type: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let fields = format!("content-type: {media_type}\r\ncontent-length: {length}\r\n{fields}");
    request("POST", "/token-request", &fields, body)
}

pub fn config(directory: &Path) -> Config {
    Config::loopback(([127, 0, 0, 1], 0).into(), &directory.join("keys"))
}

/// An account whose API key is `key`.
pub fn account(name: &str, key: &str, quota: &str) -> DeclaredAccount {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.as_bytes());
    let key_sha256 = Some(KeyHash(hash.as_ref().try_into().unwrap()));
    let quota = Some(quota.parse().unwrap());
    DeclaredAccount { name: name.to_owned(), key_sha256, quota, ..DeclaredAccount::default() }
}

/// Gives these accounts to an issuer that does not run.
pub fn declare(config: &Config, accounts: &[DeclaredAccount]) {
    let request = AccountRequest::Apply { accounts: accounts.to_vec(), prune: false };
    ask(config, &request.into(), &mut |_| Ok(())).unwrap();
}

pub fn bearer(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}
