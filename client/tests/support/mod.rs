//! A gateway that records every token it ever saw, an issuer that signs as its script states, and an agent between.

pub mod gateway;
pub mod issuer;

use gateway::Gateway;
use issuer::Issuer;
use postern_client::{Agent, Config};
use postern_config::ConfigDuration;
use postern_daemon::admin::ProcessContext;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than anything here takes, so that a hang is a failure with a name.
pub const HANG: Duration = Duration::from_secs(30);

/// Everything a test needs. The agent stops with it.
pub struct World {
    pub directory: TempDir,
    pub issuer: Arc<Issuer>,
    pub gateway: Arc<Gateway>,
    pub agent: RunningAgent,
}

pub struct RunningAgent {
    pub address: SocketAddr,
    pub process: ProcessContext,
    task: tokio::task::JoinHandle<()>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A world whose configuration `change` has had a look at.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let issuer = Issuer::start().await;
        let gateway = Gateway::start(&issuer).await;
        let mut config = config(&gateway, &issuer, directory.path());
        change(&mut config);
        let agent = RunningAgent::start(config).await;
        Self { directory, issuer, gateway, agent }
    }

    pub fn config(&self) -> Config {
        config(&self.gateway, &self.issuer, self.directory.path())
    }

    /// Waits until the wallet holds `count` tokens.
    pub async fn stocked(&self, count: usize) {
        stocked(&self.directory.path().join("wallet"), count).await;
    }

    pub fn unspent(&self) -> usize {
        unspent(&self.directory.path().join("wallet"))
    }

    pub async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        until(what, condition).await;
    }

    pub async fn connect(&self, target: &str) -> Answer {
        connect(self.agent.address, target).await
    }
}

pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(HANG, waiting).await.unwrap_or_else(|_| panic!("it never came that {what}"));
}

pub fn config(gateway: &Gateway, issuer: &Issuer, directory: &Path) -> Config {
    let mut config = Config::new(gateway.url(), directory.join("wallet"));
    config.listen.address = ([127, 0, 0, 1], 0).into();
    config.issuer.url = Some(issuer.url().into());
    (config.wallet.low, config.wallet.high) = (4, 8);
    config.wallet.delay = ConfigDuration::secs(0);
    config
}

/// Waits until the wallet file holds `count` tokens.
pub async fn stocked(wallet: &Path, count: usize) {
    let waiting = async {
        while unspent(wallet) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(HANG, waiting).await.expect("tokens are minted");
}

/// Slots in a wallet file that are not free.
pub fn unspent(wallet: &Path) -> usize {
    let bytes = std::fs::read(wallet).unwrap_or_default();
    bytes.chunks(512).skip(1).filter(|slot| slot.iter().any(|&byte| byte != 0)).count()
}

impl RunningAgent {
    pub async fn start(config: Config) -> Self {
        let process = ProcessContext::default();
        let agent = Agent::bind(config, &process).await.unwrap();
        let address = agent.local_addr();
        Self { address, process, task: tokio::spawn(agent.run()) }
    }

    /// Stops everything and waits until the wallet is free again.
    pub async fn stop(mut self) {
        self.process.shutdown.stop();
        let _ = (&mut self.task).await;
        self.process.shutdown.tracker().close();
        self.process.shutdown.tracker().wait().await;
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        self.process.shutdown.stop();
    }
}

/// An answer, and the connection it came on.
pub struct Answer {
    pub status: u16,
    pub head: String,
    /// For an error the body, for a tunnel what came together with the head.
    pub body: String,
    pub stream: TcpStream,
}

pub async fn connect(agent: SocketAddr, target: &str) -> Answer {
    send(agent, format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await
}

pub async fn send(agent: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(agent).await.unwrap();
    stream.write_all(request).await.unwrap();
    timeout(HANG, answer(stream)).await.expect("the agent answers")
}

/// Reads one answer: the head, and a body of Content-Length.
pub async fn answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        assert!(
            stream.read_buf(&mut bytes).await.unwrap() > 0,
            "cut off: {:?}",
            String::from_utf8_lossy(&bytes)
        );
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = field(&head, "content-length").map_or(0, |value| value.parse::<usize>().unwrap());
    let mut body = bytes[end..].to_vec();
    while body.len() < length {
        assert!(stream.read_buf(&mut body).await.unwrap() > 0);
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: String::from_utf8_lossy(&body).into_owned(), stream }
}

pub fn field(head: &str, name: &str) -> Option<String> {
    head.lines().skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// A server that sends everything back, and closes when the other side has.
pub async fn echo() -> SocketAddr {
    serve(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// A server on its own port that treats every connection in the same way.
pub async fn serve<F>(each: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    address
}

/// Sends a line through a tunnel to an echo server and expects it back.
pub async fn expect_echo(stream: &mut TcpStream) {
    stream.write_all(b"ping\n").await.unwrap();
    let mut back = [0; 5];
    timeout(HANG, stream.read_exact(&mut back)).await.expect("an echo").unwrap();
    assert_eq!(&back, b"ping\n");
}
