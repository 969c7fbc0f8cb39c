//! A real memcached for the tests, on a port of its own.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod fake;

use postern_spend::memcached::{Address, Client, Memcached, OnLoss, Options, Pool, Transport};
use postern_spend::{Epoch, SpendStore};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A memcached process; killed when it is dropped.
pub struct Server {
    child: Child,
    args: Vec<String>,
    at: At,
}

enum At {
    Port(u16),
    Socket(PathBuf),
}

impl Server {
    /// On a free port.
    pub fn tcp(more: &[&str]) -> Self {
        Self::start(At::Port(free_port()), more)
    }

    /// On this port.
    pub fn tcp_on(port: u16) -> Self {
        Self::start(At::Port(port), &[])
    }

    /// On a free port, TLS only, with a certificate for memcached.example; and what to trust.
    pub fn tls(directory: &Path) -> (Self, RootCertStore) {
        let own = rcgen::generate_simple_self_signed(["memcached.example".to_owned()]).unwrap();
        let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
        std::fs::write(&certificate, own.cert.pem()).unwrap();
        std::fs::write(&key, own.signing_key.serialize_pem()).unwrap();
        let files = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).unwrap();
        (Self::tcp(&["-Z", "-o", &files]), roots)
    }

    /// On a Unix socket in `directory`.
    pub fn unix(directory: &Path) -> Self {
        Self::start(At::Socket(directory.join("memcached.sock")), &[])
    }

    fn start(at: At, more: &[&str]) -> Self {
        let args: Vec<String> = more.iter().map(|&arg| arg.to_owned()).collect();
        let server = Self { child: spawn(&at, &args), args, at };
        server.answers();
        server
    }

    pub fn address(&self) -> Address {
        match &self.at {
            At::Port(port) => format!("127.0.0.1:{port}"),
            At::Socket(path) => format!("unix:{}", path.display()),
        }
        .parse()
        .unwrap()
    }

    pub fn port(&self) -> u16 {
        match self.at {
            At::Port(port) => port,
            At::Socket(_) => panic!("it listens on a Unix socket"),
        }
    }

    /// SIGKILL, and the end of it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A new process in its place, which knows nothing.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.at, &self.args);
        self.answers();
    }

    /// "STOP" freezes it, "CONT" lets it go on.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    fn answers(&self) {
        let began = Instant::now();
        while !match &self.at {
            At::Port(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
            At::Socket(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        } {
            assert!(began.elapsed() < PATIENCE, "memcached does not listen");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(at: &At, more: &[String]) -> Child {
    let mut command = Command::new("memcached");
    match at {
        At::Port(port) => command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0"]),
        At::Socket(path) => command.arg("-s").arg(path),
    };
    // As root it refuses to start without a user; as somebody else it ignores the option.
    command.args(["-u", "root", "-c", "4096"]).args(more).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("memcached is installed (apt-get install memcached)")
}

/// Another door to a server: a port that leads to it, until it is cut. Runs on a thread of its own.
pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Relay {
    pub fn to(server: u16) -> Self {
        Self::new(move |near| relay(near, server))
    }

    fn new<F>(serve: impl Fn(tokio::net::TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (end, ended) = tokio::sync::oneshot::channel();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let relays = Arc::clone(&connections);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let accepting = async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    let (near, _) = listener.accept().await.unwrap();
                    let relay = tokio::spawn(serve(near));
                    relays.lock().unwrap().push(relay.abort_handle());
                }
            };
            runtime.block_on(async {
                tokio::select! { _ = ended => {}, () = accepting => {} }
            });
        });
        Self { port, connections, _end: end }
    }

    pub fn address(&self) -> Address {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Closes the connections that are open now, whatever is on its way.
    pub fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

async fn relay(mut near: tokio::net::TcpStream, server: u16) {
    if let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await {
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await; // either may go away
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A TLS client that trusts these.
pub fn trusting(roots: RootCertStore) -> Arc<ClientConfig> {
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

/// A door that swallows one answer to an `add` of a spent record: it arrives, and the connection is closed instead of
/// answered.
pub struct Swallower {
    relay: Relay,
    state: Arc<AtomicU8>,
}

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const SWALLOWED: u8 = 2;

impl Swallower {
    pub fn to(server: u16) -> Self {
        let state = Arc::new(AtomicU8::new(IDLE));
        let shared = Arc::clone(&state);
        Self { relay: Relay::new(move |near| swallow(near, server, Arc::clone(&shared))), state }
    }

    pub fn address(&self) -> Address {
        self.relay.address()
    }

    pub fn arm(&self) {
        self.state.store(ARMED, SeqCst);
    }

    pub fn has_swallowed(&self) -> bool {
        self.state.load(SeqCst) == SWALLOWED
    }
}

async fn swallow(mut near: tokio::net::TcpStream, server: u16, state: Arc<AtomicU8>) {
    let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await else { return };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let (mut asked, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    let mut add = false;
    loop {
        tokio::select! {
            read = near.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                add = asked.starts_with(b"add ps1.");
                if far.write_all(&asked[..length]).await.is_err() {
                    return;
                }
            }
            read = far.read(&mut answer) => {
                let Ok(length @ 1..) = read else { return };
                if add && state.compare_exchange(ARMED, SWALLOWED, SeqCst, SeqCst).is_ok() {
                    return;
                }
                if near.write_all(&answer[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Both transports, by name.
pub fn transports() -> [(&'static str, Transport); 2] {
    [("pipelined", pipelined()), ("pooled", pooled(16))]
}

pub fn pipelined() -> Transport {
    Transport::Pipelined { connections: 1, queue: 4096 }
}

pub fn pooled(size: usize) -> Transport {
    Transport::Pooled(Pool {
        size,
        checkout_timeout: Duration::from_secs(5),
        check_on_checkout: false,
        idle_probe: Duration::from_secs(5),
        max_lifetime: Duration::from_secs(600),
    })
}

/// Options with deadlines that a busy machine keeps.
pub fn options(addresses: Vec<Address>, transport: Transport) -> Options {
    Options {
        addresses,
        tls: None,
        transport,
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(5),
        canary_interval: Duration::from_millis(100),
        on_loss: OnLoss::Warn,
        ask_whose: false,
        cache_bytes: 0,
    }
}

/// A client, ready.
pub async fn client(store: &Memcached) -> Client {
    let client = store.client();
    eventually("the store is ready", || async { client.ready().await.ok() }).await;
    client
}

/// Looks again and again until `look` finds something.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, looking).await {
        Ok(found) => found,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// An epoch of its own, for another hour.
pub fn epoch() -> Epoch {
    let expires = UnixSeconds::now().saturating_add(Duration::from_secs(3600));
    Epoch { key: TokenKeyId(rand::random()), expires }
}

/// A key nobody has spent.
pub fn fresh(epoch: &Epoch) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(rand::random()))
}
