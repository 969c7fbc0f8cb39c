//! One daemon of an installation: its configuration and its addresses outlive its processes.

use super::process::{Ended, Postern, command};
use super::proxy::read_response;
use super::{PATIENCE, TICK};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::block_in_place;

/// Most time until an admin listener answers; a process that is stopped by SIGSTOP never does.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A daemon that can be stopped, killed and started again at the same addresses.
pub struct Unit {
    /// As failures name it: "issuer", "gateway 1", "agent busy".
    pub name: String,
    pub config: PathBuf,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    kind: &'static str,
    process: Mutex<Option<Postern>>,
    /// The output of earlier processes.
    before: Mutex<String>,
}

/// The answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// `None`: no answer.
    pub status: Option<u16>,
    pub body: String,
}

impl Readiness {
    /// Ready, and nothing to add.
    pub fn is_plain(&self) -> bool {
        self.status == Some(200) && self.body.trim() == "ready"
    }

    pub fn is_ready(&self) -> bool {
        self.status == Some(200)
    }
}

impl Unit {
    pub fn new(
        kind: &'static str,
        name: impl Into<String>,
        config: PathBuf,
        address: SocketAddr,
        admin: SocketAddr,
    ) -> Self {
        let (process, before) = (Mutex::new(None), Mutex::default());
        Self { name: name.into(), config, address, admin, kind, process, before }
    }

    /// Starts a process. It may not listen yet when this returns.
    pub fn start(&self) {
        let mut process = self.process.lock().unwrap();
        assert!(process.is_none(), "{} runs already", self.name);
        let command = command([self.kind.as_ref(), "--config".as_ref(), self.config.as_os_str()]);
        *process = Some(Postern::start(command));
    }

    /// Starts a process and waits until it is ready; how long that took.
    pub async fn start_ready(&self) -> Duration {
        let began = Instant::now();
        self.start();
        self.ready().await;
        began.elapsed()
    }

    /// Waits until it takes connections.
    pub async fn listening(&self) {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(self.address).await.is_err() {
            assert!(Instant::now() < deadline, "{} does not listen, and logs\n{}", self.name, self.log());
            tokio::time::sleep(TICK).await;
        }
    }

    /// Waits until `/readyz` is 200.
    pub async fn ready(&self) {
        self.readiness_when("ready", Readiness::is_ready).await;
    }

    /// Waits until `/readyz` answers "ready" alone.
    pub async fn plainly_ready(&self) {
        self.readiness_when("ready and nothing else", Readiness::is_plain).await;
    }

    /// Waits until the answer of `/readyz` is as wanted.
    pub async fn readiness_when(&self, what: &str, wanted: impl Fn(&Readiness) -> bool) -> Readiness {
        let readiness = self.readiness_within(PATIENCE, &wanted).await;
        assert!(
            wanted(&readiness),
            "{} is not {what} within {PATIENCE:?}; it answers {readiness:?}, and its log is\n{}",
            self.name,
            self.log()
        );
        readiness
    }

    /// The answer of `/readyz` as soon as it is as wanted, and the last one when that takes longer than `limit`.
    pub async fn readiness_within(&self, limit: Duration, wanted: impl Fn(&Readiness) -> bool) -> Readiness {
        let deadline = Instant::now() + limit;
        loop {
            let readiness = self.readiness().await;
            if wanted(&readiness) || Instant::now() > deadline {
                return readiness;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    pub async fn readiness(&self) -> Readiness {
        match self.admin_page("/readyz").await {
            Some((status, body)) => Readiness { status: Some(status), body },
            None => Readiness { status: None, body: String::new() },
        }
    }

    /// Status and body of a page of the admin listener; `None` when there is no answer.
    pub async fn admin_page(&self, path: &str) -> Option<(u16, String)> {
        let asking = async {
            let mut stream = BufReader::new(TcpStream::connect(self.admin).await.ok()?);
            let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
            stream.write_all(request.as_bytes()).await.ok()?;
            let response = read_response(&mut stream).await.ok()?;
            Some((response.status, response.body))
        };
        tokio::time::timeout(ADMIN_TIMEOUT, asking).await.ok().flatten()
    }

    /// All samples of a metric family and their sum; `None` when the daemon does not answer.
    pub async fn metrics(&self) -> Option<Samples> {
        let (_, text) = self.admin_page("/metrics").await.filter(|(status, _)| *status == 200)?;
        Some(Samples(text))
    }

    pub fn is_running(&self) -> bool {
        self.process.lock().unwrap().is_some()
    }

    /// Sends a signal, such as "HUP".
    pub fn signal(&self, name: &str) {
        self.process.lock().unwrap().as_ref().expect("it runs").signal(name);
    }

    /// SIGTERM, and its end.
    pub fn terminate(&self) -> Ended {
        self.end(Postern::terminate)
    }

    /// SIGKILL, and its end.
    pub fn kill(&self) -> Ended {
        self.end(Postern::kill)
    }

    fn end(&self, how: impl FnOnce(Postern) -> Ended) -> Ended {
        let process = self.process.lock().unwrap().take().unwrap_or_else(|| panic!("{} runs", self.name));
        let ended = block_in_place(|| how(process));
        *self.before.lock().unwrap() += &ended.stderr;
        ended
    }

    /// Everything that its processes wrote to stderr so far.
    pub fn log(&self) -> String {
        let now = self.process.lock().unwrap().as_ref().map_or(String::new(), |process| process.written().1);
        self.before.lock().unwrap().clone() + &now
    }

    /// Waits until the log has a line with all of `words` after its first `from` bytes.
    pub async fn logs(&self, from: usize, words: &[&str]) -> String {
        let line = self.logged(from, words, PATIENCE).await;
        line.unwrap_or_else(|| {
            let log = self.log();
            let new = log.get(from..).unwrap_or_default();
            panic!("{} has not logged a line with {words:?} within {PATIENCE:?}, but\n{new}", self.name)
        })
    }

    /// The same; `None` when there is no such line in time.
    pub async fn logged(&self, from: usize, words: &[&str], limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            let log = self.log();
            let mut new = log.get(from..).unwrap_or_default().lines();
            if let Some(line) = new.find(|line| words.iter().all(|word| line.contains(word))) {
                return Some(line.to_owned());
            }
            tokio::time::sleep(TICK).await;
        }
        None
    }
}

/// `/metrics` at one moment.
pub struct Samples(String);

impl Samples {
    /// The sum of the samples of `family` whose labels hold all of `labels`, such as `outcome="opened"`.
    pub fn sum(&self, family: &str, labels: &[&str]) -> u64 {
        self.of(family)
            .filter(|(found, _)| labels.iter().all(|label| found.contains(label)))
            .map(|(_, n)| n)
            .sum()
    }

    /// Labels and value of each sample of `family`.
    pub fn of<'a>(&'a self, family: &'a str) -> impl Iterator<Item = (&'a str, u64)> + 'a {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(family)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let is_whole = labels.is_empty() || labels.starts_with('{');
            is_whole.then(|| (labels, value.parse::<f64>().unwrap() as u64))
        })
    }
}
