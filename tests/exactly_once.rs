//! 200 tokens, each presented by 64 connections at once to a real gateway: exactly 200 tunnels. And never more, nor one
//! token twice, when the gateway is killed and restarted in the middle. Every other presentation over HTTP/2 asks for UDP.

use crate::support::admin::Metrics;
use crate::support::daemon::{Daemon, gateway_config, issuer_config};
use crate::support::http2::Connection;
use crate::support::ledger::{Answer, Outage, Record, Summary, judge};
use crate::support::process::run;
use crate::support::proxy::Head;
use crate::support::tokens::present;
use crate::support::udp::capsule;
use crate::support::{PATIENCE, association, proxy, target, tokens};
use std::fs::DirBuilder;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;

const TOKENS: usize = 200;
const PRESENTERS: usize = 64;
/// Tokens that are raced for at the same time: 256 connections.
const AT_A_TIME: usize = 4;
/// On which all presenters meet over HTTP/2: with 32 streams each at a time.
const CONNECTIONS: usize = 8;
const KILLS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_opens_exactly_one_tunnel_when_each_spend_is_synced() {
    assert_exactly_once("always", Way::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_opens_exactly_one_tunnel_with_a_sync_every_second() {
    assert_exactly_once("1s", Way::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_opens_exactly_one_tunnel_on_many_streams_of_few_connections() {
    assert_exactly_once("1s", Way::http2()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_opens_two_tunnels_across_kills_when_each_spend_is_synced() {
    assert_at_most_once_across_kills("always", Way::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_opens_two_tunnels_across_kills_with_a_sync_every_second() {
    assert_at_most_once_across_kills("1s", Way::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_opens_two_tunnels_across_kills_over_http_2() {
    assert_at_most_once_across_kills("1s", Way::http2()).await;
}

/// A token spent since a backup, or before the directory was emptied, is not valid again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_spent_token_is_admitted_by_a_store_that_was_restored_or_emptied() {
    let home = TempDir::new().unwrap();
    let (store, backup) = (home.path().join("spent"), home.path().join("backup"));
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let target = target::echo().await.to_string();
    let (mut spent, mut gateway) = (Vec::<String>::new(), Daemon::ready("gateway", &config).await);
    for life in ["first", "backed up", "restored", "emptied"] {
        for value in &spent {
            assert_ne!(present(gateway.address, &target, value).await.status, 200, "{life}");
        }
        for value in tokens::mint(&issuer.http(), &gateway.http(), 10) {
            assert_eq!(present(gateway.address, &target, &value).await.status, 200, "{life}");
            assert_ne!(present(gateway.address, &target, &value).await.status, 200, "{life}");
            spent.push(value);
        }
        gateway.process.terminate().assert_stopped();
        match life {
            "first" => copy(&store, &backup),
            "backed up" => {
                std::fs::remove_dir_all(&store).unwrap();
                copy(&backup, &store);
            }
            _ => std::fs::remove_dir_all(&store).unwrap(),
        }
        gateway = Daemon::ready("gateway", &config).await;
    }
    for value in &spent {
        assert_ne!(present(gateway.address, &target, value).await.status, 200);
    }
}

/// Two processes over one directory would each admit every token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_one_directory_is_refused_even_without_the_lock_file() {
    let home = TempDir::new().unwrap();
    let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
    let config = gateway_config(home.path(), &issuer.http(), "", "1s", "");
    let gateway = Daemon::ready("gateway", &config).await;
    for lock_file in ["there", "removed"] {
        if lock_file == "removed" {
            std::fs::remove_file(home.path().join("spent/lock")).unwrap();
        }
        let second = run(["gateway".as_ref(), "--config".as_ref(), config.as_os_str()]);
        assert!(
            second.stderr.contains("another process has the double-spend store"),
            "{lock_file}: {second:?}"
        );
    }
    drop(gateway);
}

/// A directory's files, in a new one.
fn copy(from: &Path, to: &Path) {
    DirBuilder::new().mode(0o700).create(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

async fn assert_exactly_once(fsync: &str, way: Way) {
    let scene = Scene::new(fsync, way).await;
    let gateway = scene.open().await;
    scene.race().await;
    let summary = scene.verdict(&[]);
    let expected = Summary { opened: TOKENS, spent: TOKENS * (PRESENTERS - 1), ..Summary::default() };
    assert_eq!(summary, expected);
    let metrics = Metrics::of(gateway.admin).await;
    let late = metrics.value("postern_check_duration_seconds_count{stage=\"add\",result=\"spent\"}");
    println!("fsync {fsync}: {late} of {} replays got past the hint to the verdict", summary.spent);
    gateway.process.terminate().assert_stopped();
}

async fn assert_at_most_once_across_kills(fsync: &str, way: Way) {
    let scene = Scene::new(fsync, way).await;
    let mut gateway = scene.open().await;
    let mut outages = Vec::new();
    let racing = tokio::spawn({
        let scene = Arc::clone(&scene);
        async move { scene.race().await }
    });
    for kill in 1..=KILLS {
        scene.book.written(kill * TOKENS * PRESENTERS / (KILLS + 1)).await;
        let from = scene.book.now();
        // Stopped first, so that the kill meets presentations however slowly this process gets to it.
        gateway.process.signal("STOP");
        scene.book.quiet().await;
        scene.gateway.send_replace(None);
        gateway.kill();
        gateway = scene.open().await;
        outages.push(Outage { from, until: scene.book.now() });
    }
    racing.await.unwrap();
    // Now every 200 there was is older than a kill, and every token is tried once more.
    let from = scene.book.now();
    gateway.kill();
    let gateway = scene.open().await;
    outages.push(Outage { from, until: scene.book.now() });
    for token in 0..TOKENS {
        Arc::clone(&scene).present(token, None).await;
    }
    let summary = scene.verdict(&outages);
    println!("fsync {fsync}, {} kills: {summary:?}", outages.len());
    assert!(summary.broken >= KILLS, "the kills met no traffic: {summary:?}");
    assert!(summary.opened <= TOKENS && summary.opened > TOKENS / 2, "{summary:?}");
    gateway.process.terminate().assert_stopped();
}

/// An issuer, tokens, a target, a book; gateways come and go.
struct Scene {
    _home: TempDir,
    _issuer: Daemon,
    config: PathBuf,
    tokens: Vec<String>,
    target: SocketAddr,
    udp_target: SocketAddr,
    /// `None` while there is none to be sent to.
    gateway: watch::Sender<Option<SocketAddr>>,
    book: Book,
    way: Way,
}

/// A connection to the gateway that was there when it was needed.
type Shared = tokio::sync::Mutex<Option<(SocketAddr, Connection)>>;

/// The presenters' way to a gateway.
enum Way {
    /// Each on its own connection.
    Http1,
    /// Each on a stream of one of these connections, which are opened when they are needed; those of every other turn for UDP.
    Http2 { connections: Vec<Shared>, turn: AtomicUsize },
}

impl Way {
    fn http2() -> Self {
        Self::Http2 {
            connections: (0..CONNECTIONS).map(|_| Shared::default()).collect(),
            turn: AtomicUsize::new(0),
        }
    }
}

impl Scene {
    async fn new(fsync: &str, way: Way) -> Arc<Self> {
        let home = TempDir::new().unwrap();
        let issuer = Daemon::ready("issuer", &issuer_config(home.path(), "")).await;
        let config = gateway_config(home.path(), &issuer.http(), "", fsync, "udp = \"any\"\n");
        let gateway = Daemon::ready("gateway", &config).await;
        let tokens = tokens::mint(&issuer.http(), &gateway.http(), TOKENS);
        assert_eq!(tokens.len(), TOKENS);
        gateway.process.terminate().assert_stopped();
        Arc::new(Self {
            _home: home,
            _issuer: issuer,
            config,
            tokens,
            target: target::echo().await,
            udp_target: association::echo().await,
            gateway: watch::Sender::new(None),
            book: Book::new(),
            way,
        })
    }

    /// A gateway, ready and known to the presenters.
    async fn open(&self) -> Daemon {
        let gateway = Daemon::ready("gateway", &self.config).await;
        self.gateway.send_replace(Some(gateway.address));
        gateway
    }

    /// Presents every token from [`PRESENTERS`] connections at once.
    async fn race(self: &Arc<Self>) {
        let mut races = JoinSet::new();
        for token in 0..TOKENS {
            if races.len() == AT_A_TIME {
                races.join_next().await.unwrap().unwrap();
            }
            let scene = Arc::clone(self);
            races.spawn(async move {
                let start = Arc::new(Barrier::new(PRESENTERS));
                let mut presenters = JoinSet::new();
                for _ in 0..PRESENTERS {
                    presenters.spawn(Arc::clone(&scene).present(token, Some(Arc::clone(&start))));
                }
                while let Some(ended) = presenters.join_next().await {
                    ended.unwrap();
                }
            });
        }
        while let Some(ended) = races.join_next().await {
            ended.unwrap();
        }
    }

    /// Presents a token; and again, once there is a gateway, while the answer was lost in a kill.
    async fn present(self: Arc<Self>, token: usize, together: Option<Arc<Barrier>>) {
        let mut together = together;
        loop {
            let gateway = self.gateway.subscribe().wait_for(Option::is_some).await.unwrap().unwrap();
            let start = self.book.now();
            let answer = self.exchange(gateway, token, together.take()).await;
            self.book.write(Record { token, start, end: self.book.now(), answer: answer.clone() });
            if answer != Answer::Broken {
                return;
            }
        }
    }

    async fn exchange(&self, gateway: SocketAddr, token: usize, together: Option<Arc<Barrier>>) -> Answer {
        match &self.way {
            Way::Http1 => self.exchange_alone(gateway, token, together).await,
            Way::Http2 { connections, turn } => {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                let connection = &connections[turn % CONNECTIONS];
                // Both kinds come on each connection.
                let is_udp = (turn + turn / CONNECTIONS).is_multiple_of(2);
                self.exchange_on(connection, gateway, token, together, is_udp).await
            }
        }
    }

    async fn exchange_alone(
        &self,
        gateway: SocketAddr,
        token: usize,
        together: Option<Arc<Barrier>>,
    ) -> Answer {
        let connected = proxy::dial(gateway).await;
        if let Some(barrier) = together {
            barrier.wait().await;
        }
        let Ok(mut stream) = connected else { return Answer::Broken };
        let target = self.target.to_string();
        match proxy::connect(&mut stream, &target, Some(&self.tokens[token])).await {
            Ok(head) if head.status == 200 => opened(proxy::echoes(&mut stream, &paid(token)).await),
            Ok(head) => refused(&head),
            Err(_) => Answer::Broken,
        }
    }

    async fn exchange_on(
        &self,
        shared: &Shared,
        gateway: SocketAddr,
        token: usize,
        together: Option<Arc<Barrier>>,
        is_udp: bool,
    ) -> Answer {
        let connection = async {
            let mut shared = shared.lock().await;
            match &*shared {
                Some((to, connection)) if *to == gateway => Ok(connection.clone()),
                _ => Connection::to(gateway).await.inspect(|new| *shared = Some((gateway, new.clone()))),
            }
        };
        let connection = connection.await;
        if let Some(barrier) = together {
            barrier.wait().await;
        }
        let Ok(connection) = connection else { return Answer::Broken };
        let (sent, authorization) = (paid(token), &self.tokens[token]);
        let (answer, sent) = if is_udp {
            (connection.udp(self.udp_target, authorization).await, capsule(&sent))
        } else {
            (connection.connect(&self.target.to_string(), authorization).await, sent)
        };
        match answer {
            Ok((_, Some(mut tunnel))) => opened(tunnel.echoes(&sent).await),
            Ok((head, None)) => refused(&head),
            Err(_) => Answer::Broken,
        }
    }

    fn verdict(&self, outages: &[Outage]) -> Summary {
        judge(&self.book.records.lock().unwrap(), TOKENS, outages)
            .unwrap_or_else(|violation| panic!("{violation}"))
    }
}

fn paid(token: usize) -> Vec<u8> {
    format!("token {token} paid for this").into_bytes()
}

/// The answer of a 200, by what became of its tunnel.
fn opened(carried: io::Result<()>) -> Answer {
    if carried.is_ok() { Answer::Opened } else { Answer::OpenedAndLost }
}

fn refused(head: &Head) -> Answer {
    if head.says_spent() { Answer::AlreadySpent } else { Answer::Other(head.status) }
}

/// The records, and a clock.
struct Book {
    began: Instant,
    records: Mutex<Vec<Record>>,
    length: watch::Sender<usize>,
}

impl Book {
    fn new() -> Self {
        Self { began: Instant::now(), records: Mutex::default(), length: watch::Sender::new(0) }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn write(&self, record: Record) {
        let mut records = self.records.lock().unwrap();
        records.push(record);
        self.length.send_replace(records.len());
    }

    /// Returns when there are this many records.
    async fn written(&self, length: usize) {
        let mut written = self.length.subscribe();
        let waited = tokio::time::timeout(2 * PATIENCE, written.wait_for(|now| *now >= length)).await;
        assert!(waited.is_ok(), "only {} presentations so far", *self.length.borrow());
    }

    /// Returns when nothing is answered any more.
    async fn quiet(&self) {
        let mut before = None;
        loop {
            let length = *self.length.borrow();
            if before.replace(length) == Some(length) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn record(token: usize, start: u64, end: u64, answer: Answer) -> Record {
    Record { token, start: Duration::from_millis(start), end: Duration::from_millis(end), answer }
}

/// The histories that the judge must distinguish.
#[test]
fn the_judge_accepts_an_honest_history_and_catches_forged_ones() {
    let outages = [Outage { from: Duration::from_millis(20), until: Duration::from_millis(30) }];
    let honest = vec![
        record(0, 0, 9, Answer::Opened),
        record(0, 1, 10, Answer::AlreadySpent),
        record(1, 15, 25, Answer::Broken),
        record(1, 31, 35, Answer::AlreadySpent),
    ];
    let summary = Summary { opened: 1, spent: 2, broken: 1, unanswered: 1 };
    assert_eq!(judge(&honest, 2, &outages), Ok(summary));

    let caught = |change: &dyn Fn(&mut Vec<Record>), expected: &str| {
        let mut forged = honest.clone();
        change(&mut forged);
        let violation = judge(&forged, 2, &outages).unwrap_err();
        assert!(violation.0.contains(expected), "{violation}");
    };
    caught(
        &|records| records.push(record(0, 40, 50, Answer::Opened)),
        "token 0 was answered 200 more than once",
    );
    caught(
        &|records| records.push(record(0, 15, 25, Answer::OpenedAndLost)),
        "token 0 was answered 200 more than once",
    );
    caught(&|records| records[3].answer = Answer::Other(503), "token 1 got an answer");
    caught(&|records| records[1].answer = Answer::Broken, "token 0 was cut off outside any outage");
    caught(&|records| records[0].answer = Answer::OpenedAndLost, "token 0 was cut off outside any outage");
    caught(&|records| records[0].answer = Answer::AlreadySpent, "token 0 was never answered 200");
    caught(
        &|records| records.retain(|record| record.answer != Answer::Broken),
        "token 1 was refused as spent",
    );
    caught(&|records| records.truncate(2), "token 1 was never answered 200");
}
