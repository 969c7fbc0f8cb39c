//! A real memcached for the tests, on its own port.

pub mod fake;
pub mod marked;

pub use postern_testkit::memcached::Server;
pub use postern_testkit::ports;

use postern_spend::memcached::{Address, Client, Memcached, Options, Replicas, Transport};
use postern_spend::{Epoch, Marks, SpendStore};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::future::Future;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Another endpoint to a server: a port that leads to it, until it is cut. Runs on its own thread.
pub struct Relay {
    port: u16,
    connections: Arc<Mutex<Vec<tokio::task::AbortHandle>>>,
    freezing: tokio::sync::mpsc::UnboundedSender<std::sync::mpsc::Receiver<()>>,
}

impl Relay {
    pub fn to(server: u16) -> Self {
        Self::new(move |near| relay(near, server))
    }

    /// One to the server at the port that this holds when a connection is made.
    pub fn to_either(server: Arc<AtomicU16>) -> Self {
        Self::new(move |near| relay(near, server.load(SeqCst)))
    }

    /// One that passes every command on in two small writes, on a socket that holds small segments back (Nagle): the
    /// second waits until the server acknowledges the first, which it delays. 40 ms, as in the story.
    pub fn in_two_writes_to(server: u16) -> Self {
        Self::new(move |near| in_two_writes(near, server))
    }

    fn new<F>(serve: impl Fn(tokio::net::TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (freezing, mut frozen) = tokio::sync::mpsc::unbounded_channel::<std::sync::mpsc::Receiver<()>>();
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
                let freezing = async {
                    while let Some(thawed) = frozen.recv().await {
                        _ = thawed.recv(); // the thread of all connections
                    }
                };
                tokio::select! { () = freezing => {}, () = accepting => {} }
            });
        });
        Self { port, connections, freezing }
    }

    pub fn address(&self) -> Address {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Stops the relay until the returned sender is dropped: its kernel still accepts connections and bytes.
    pub fn freeze(&self) -> std::sync::mpsc::Sender<()> {
        let (thaw, thawed) = std::sync::mpsc::channel();
        self.freezing.send(thawed).unwrap();
        thaw
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

async fn in_two_writes(near: tokio::net::TcpStream, server: u16) {
    let Ok(far) = tokio::net::TcpStream::connect(("127.0.0.1", server)).await else { return };
    near.set_nodelay(true).unwrap();
    let ((mut asking, mut answered), (mut answers, mut asked)) = (near.into_split(), far.into_split());
    let up = async move {
        let mut bytes = vec![0; 65_536];
        while let Ok(length @ 1..) = asking.read(&mut bytes).await {
            // Within the first command: a whole one would be answered, and the answer acknowledges it.
            let (first, second) = bytes[..length].split_at(1);
            if asked.write_all(first).await.is_err() || asked.write_all(second).await.is_err() {
                return;
            }
        }
    };
    let down = tokio::io::copy(&mut answers, &mut answered);
    tokio::select! { () = up => {}, _ = down => {} }
}

/// A TLS client that trusts these.
pub fn trusting(roots: RootCertStore) -> Arc<ClientConfig> {
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

/// An endpoint that swallows one answer to an `add` of a record: it arrives, and the connection is closed instead
/// of answered.
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
                add = asked.starts_with(b"add |");
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
    Transport::Pipelined { queue: 4096 }
}

pub fn pooled(size: usize) -> Transport {
    Transport::Pooled { size, checkout_timeout: Duration::from_secs(5) }
}

/// Options with deadlines that a busy machine keeps.
pub fn options(addresses: Vec<Address>, transport: Transport) -> Options {
    Options {
        replicas: Replicas::One(addresses),
        tls: None,
        transport,
        timeout: Duration::from_secs(5),
        slow: Duration::from_millis(20),
        connect_timeout: Duration::from_secs(5),
        interval: Duration::from_millis(100),
        clock_tolerance: Duration::from_secs(1800),
        marks: Marks { id: Arc::new(marked::id) },
        cache_bytes: 0,
    }
}

/// A client, ready.
pub async fn client(store: &Memcached) -> Client {
    let client = store.client();
    eventually("the store is ready", || async { client.serving().ok() }).await;
    client
}

/// The same, with an epoch whose tokens it admits.
pub async fn begun(store: &Memcached) -> (Client, Epoch) {
    let (client, epoch) = (client(store).await, epoch());
    store.offer(&[epoch]);
    let mark = marked::mark_of(store, epoch.key).await;
    (client, marked::marked(epoch, mark))
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

/// A new epoch, for another two hours, without a mark yet.
pub fn epoch() -> Epoch {
    let expires = UnixSeconds::now().saturating_add(Duration::from_secs(7200));
    Epoch { key: TokenKeyId(rand::random()), expires, mark: None }
}

/// A key that has not been spent.
pub fn fresh(epoch: &Epoch) -> SpentKey {
    SpentKey::derive(TokenType::BlindRsa2048, epoch.key, Nonce(rand::random()))
}
