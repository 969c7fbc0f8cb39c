//! Code shared by the tests: an issuer in a variable, a gateway on a free port, raw clients, small targets.

pub(crate) mod client;
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub(crate) mod http2;
#[allow(dead_code, reason = "each test binary uses a part of it")]
pub(crate) mod log;
#[allow(dead_code, reason = "of use to one of the binaries")]
pub(crate) mod proxies;
pub(crate) mod proxy_status;
pub(crate) mod target;
#[allow(dead_code, reason = "of use to one of the binaries")]
pub(crate) mod udp;

use postern_config::ConfigDuration;
use postern_daemon::admin::ProcessContext;
use postern_daemon::admin::live::Live;
use postern_daemon::drain::Shutdown;
use postern_daemon::readiness::Readiness;
use postern_gateway::config::{
    ChallengeConfig, Config, Egress, Issuer as Keys, Limits, Listen, Ports, PortsWord, StoreConfig, StoreKind,
};
use postern_gateway::{Gateway, StartError};
use postern_token::header::{Challenge, format_authorization};
use postern_token::{
    ChallengeDigest, Directory, DirectoryKey, IssuerKey, Mark, SigningKey, Token, TokenChallenge, TokenKeyId,
    TokenType, UnixSeconds,
};
use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Longer than anything takes that works: a test that hangs fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The issuer whose key the gateways of most tests know. Making an RSA key takes a while, so there is one.
pub(crate) static ISSUER: LazyLock<Issuer> = LazyLock::new(Issuer::new);

/// An issuer without a network.
pub(crate) struct Issuer {
    signing: SigningKey,
    public: IssuerKey,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
        let public = IssuerKey::from_spki(signing.public_key()).unwrap();
        Self { signing, public }
    }

    pub(crate) fn public_key(&self) -> &[u8] {
        self.signing.public_key()
    }

    #[allow(dead_code, reason = "of use to one of the binaries")]
    pub(crate) fn key_id(&self) -> TokenKeyId {
        self.signing.id()
    }

    /// A token for the challenge of the gateway that this test has started last.
    pub(crate) fn token(&self) -> Token {
        self.token_for(challenge_of(self.signing.id()).digest())
    }

    pub(crate) fn token_for(&self, challenge: ChallengeDigest) -> Token {
        let (request, pending) = self.public.request(challenge).unwrap();
        pending.finalize(&self.signing.sign(&request).unwrap()).unwrap()
    }

    /// A fresh token as the value of Proxy-Authorization.
    pub(crate) fn authorization(&self) -> String {
        format_authorization(&self.token())
    }

    pub(crate) fn entry(&self, not_before: Option<u64>, not_after: Option<u64>) -> DirectoryKey {
        DirectoryKey::new(
            TokenType::BlindRsa2048,
            self.public_key(),
            not_before.map(UnixSeconds),
            not_after.map(UnixSeconds),
        )
    }
}

/// The challenge of the gateway that this test has started last, under [`ISSUER`]'s key.
pub(crate) fn challenge() -> TokenChallenge {
    challenge_of(ISSUER.signing.id())
}

/// The same under another key. Of a gateway that has no mark for it, a challenge that no gateway has.
fn challenge_of(key: TokenKeyId) -> TokenChallenge {
    let mark = LATEST.with_borrow(|latest| latest.as_ref().and_then(|latest| latest.mark(key)));
    let second = mark.unwrap_or(Mark::new([0; 16])).second_name("proxy.example");
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example", &second]).unwrap()
}

/// The location of a gateway's mark.
#[derive(Clone)]
struct Latest {
    address: SocketAddr,
    records: PathBuf,
    is_shared: bool,
}

thread_local!(static LATEST: RefCell<Option<Latest>> = const { RefCell::new(None) });

impl Latest {
    fn mark(&self, key: TokenKeyId) -> Option<Mark> {
        if self.is_shared {
            return marked_challenge(self.address);
        }
        // From the file, because a challenge names the newest key alone, and some gateways do not serve, or only over TLS or
        // behind a PROXY header; and a request for it would be counted. `embedded::origin` documents the layout.
        let file = std::fs::read(self.records.join(format!("{}.spent", key.to_hex()))).ok()?;
        Some(Mark::new(file.get(72..88)?.try_into().unwrap()))
    }
}

/// Returns when the latest gateway has a mark for tokens of this issuer.
#[allow(dead_code, reason = "of use to one of the binaries")]
pub(crate) async fn bound(issuer: &Issuer) {
    let mark =
        || LATEST.with_borrow(|latest| latest.as_ref().and_then(|latest| latest.mark(issuer.key_id())));
    let waiting = async {
        while mark().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
}

/// The mark in the answer to a request without a token. It may block this thread: a gateway's workers have their own.
fn marked_challenge(gateway: SocketAddr) -> Option<Mark> {
    let mut stream = TcpStream::connect(gateway).ok()?;
    stream
        .write_all(
            b"CONNECT target.example:443 HTTP/1.1\r\nHost: target.example:443\r\nConnection: close\r\n\r\n",
        )
        .ok()?;
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut head = lines.take_while(|line| !line.is_empty());
    let value = head.find_map(|line| line.strip_prefix("proxy-authenticate: ").map(str::to_owned))?;
    let challenges = Challenge::parse_all(value.as_bytes()).ok()?;
    Mark::of_challenge(&TokenChallenge::parse(&challenges.first()?.bytes).ok()?, "proxy.example")
}

/// The JSON of a directory with these keys.
pub(crate) fn directory(token_keys: Vec<DirectoryKey>) -> Vec<u8> {
    Directory {
        issuer_request_uri: "/token-request".into(),
        token_keys,
        batch_limit: None,
        revoked: Vec::new(),
    }
    .serialize()
}

/// A gateway on a free loopback port, egress open, keys from a file, everything else under `home`.
pub(crate) fn config(home: &Path) -> Config {
    Config {
        listen: Listen { address: ([127, 0, 0, 1], 0).into(), workers: 2, ..Listen::default() },
        tls: None,
        peers: None,
        log: Default::default(),
        issuer: Keys { keys: Some(home.join("keys.json")), ..Keys::default() },
        challenge: ChallengeConfig {
            issuer_name: "issuer.example".into(),
            origin: "proxy.example".into(),
            max_age: ConfigDuration::hours(1),
        },
        store: StoreConfig {
            kind: StoreKind::Embedded,
            path: home.join("spent"),
            fsync: Default::default(),
            memcached: Default::default(),
        },
        egress: Egress { private: true, ports: Ports::Word(PortsWord::Any), ..Egress::default() },
        limits: Limits::default(),
        drain: Default::default(),
        tracing: Default::default(),
    }
}

/// A home with [`ISSUER`]'s directory in it.
pub(crate) fn home_with_keys() -> TempDir {
    let home = TempDir::new().unwrap();
    let not_after = UnixSeconds::now().saturating_add(Duration::from_secs(86_400)).0;
    let entry = ISSUER.entry(None, Some(not_after));
    std::fs::write(home.path().join("keys.json"), directory(vec![entry])).unwrap();
    home
}

/// A gateway that runs until it is dropped or stopped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Its listener for peers.
    pub(crate) peers: Option<SocketAddr>,
    pub(crate) shutdown: Shutdown,
    pub(crate) readiness: Readiness,
    pub(crate) live: Live,
    /// The tracker's count while no connection is open: the accept loops.
    idle_tasks: usize,
    task: Option<JoinHandle<io::Result<()>>>,
    home: Option<TempDir>,
    latest: Latest,
}

impl Running {
    /// With [`ISSUER`]'s key, ready to serve.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// The same, its configuration changed by `change`.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let mut running = Self::start_in(home_with_keys(), change).unwrap();
        running.ready().await;
        running.idle_tasks = running.shutdown.tracker().len();
        running
    }

    /// In a home of the test's making; not waited for.
    pub(crate) fn start_in(home: TempDir, change: impl FnOnce(&mut Config)) -> Result<Self, StartError> {
        let mut config = config(home.path());
        change(&mut config);
        let process = ProcessContext::default();
        let gateway = Gateway::bind(&config, &process)?;
        let (address, peers) = (gateway.local_addr(), gateway.peers_addr());
        let task = Some(tokio::spawn(gateway.run()));
        let is_shared = config.store.kind == StoreKind::Memcached;
        let latest = Latest { address, records: config.store.path.clone(), is_shared };
        let ProcessContext { shutdown, readiness, live, .. } = process;
        let running =
            Self { address, peers, shutdown, readiness, live, idle_tasks: 0, task, home: Some(home), latest };
        running.turn_to();
        Ok(running)
    }

    /// From now on this test's tokens are for this gateway.
    pub(crate) fn turn_to(&self) {
        LATEST.set(Some(self.latest.clone()));
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.as_ref().unwrap().path()
    }

    /// Returns when every gate is open.
    pub(crate) async fn ready(&self) {
        self.readiness_is(|reasons| reasons.is_empty()).await;
    }

    /// Returns when the reasons for not being ready satisfy `wanted`. They have no event to wait for, so they are
    /// looked at every few milliseconds.
    pub(crate) async fn readiness_is(&self, wanted: impl Fn(&[String]) -> bool) {
        says(|| self.readiness.reasons(), wanted).await;
    }

    /// Stops at once, waits for the gateway to end and returns its home.
    pub(crate) async fn stop(mut self) -> TempDir {
        self.shutdown.stop();
        self.ended().await;
        self.home.take().unwrap()
    }

    /// Waits for the gateway to end by itself.
    pub(crate) async fn ended(&mut self) {
        let task = self.task.take().unwrap();
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    }

    /// Returns when this number of connections has been accepted and is open: the workers accept in any order.
    #[allow(dead_code, reason = "of use to one of the binaries")]
    pub(crate) async fn accepted(&self, connections: usize) {
        let tracker = self.shutdown.tracker();
        let watching = async {
            while tracker.len() < self.idle_tasks + connections {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, watching).await.is_ok(), "{} tasks", tracker.len());
    }

    /// Returns when no connection or tunnel is left: nothing is tracked but what was tracked at the start.
    pub(crate) async fn emptied(&self) {
        let tracker = self.shutdown.tracker();
        let watching = async {
            while tracker.len() > self.idle_tasks {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, watching).await.is_ok(), "{} tasks are left", tracker.len());
    }
}

async fn says(texts: impl Fn() -> Vec<String>, wanted: impl Fn(&[String]) -> bool) {
    let watching = async {
        while !wanted(&texts()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, watching).await;
    assert!(waited.is_ok(), "in vain; the last is {:?}", texts());
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.stop();
    }
}
