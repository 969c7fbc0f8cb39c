//! Sources of the keys: the issuer's directory over HTTP, fetched periodically, or a file.

use crate::support::client::{Answer, Client, connect_with};
use crate::support::target::Echo;
use crate::support::{ISSUER, Issuer, Running, bound, directory};
use parking_lot::Mutex;
use postern_config::ConfigDuration;
use postern_gateway::config::Config;
use postern_token::UnixSeconds;
use postern_token::header::Challenge;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// An issuer's directory with configurable answers that reports each request's If-None-Match.
struct FakeDirectory {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    asked: mpsc::UnboundedReceiver<Option<String>>,
}

impl FakeDirectory {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(plain("503 Service Unavailable", "", b"")));
        let (report, asked) = mpsc::unbounded_channel();
        let current = Arc::clone(&answer);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let text = String::from_utf8(request).unwrap().to_lowercase();
                let etag = text.lines().find_map(|line| line.strip_prefix("if-none-match: "));
                let matches = etag.is_some_and(|etag| find_in(&current.lock(), etag));
                let bytes = if matches { plain("304 Not Modified", "", b"") } else { current.lock().clone() };
                let _ = stream.write_all(&bytes).await;
                let _ = report.send(etag.map(str::to_owned));
            }
        });
        Self { address, answer, asked }
    }

    fn answers(&self, bytes: Vec<u8>) {
        *self.answer.lock() = bytes;
    }

    fn lists(&self, etag: &str, issuers: &[&Issuer]) {
        let keys = issuers.iter().map(|issuer| issuer.entry(None, None)).collect();
        self.answers(plain("200 OK", &format!("ETag: \"{etag}\"\r\n"), &directory(keys)));
    }

    /// The If-None-Match of the next request that begins after now.
    async fn next(&mut self) -> Option<String> {
        while self.asked.try_recv().is_ok() {}
        tokio::time::timeout(crate::support::PATIENCE, self.asked.recv()).await.unwrap().unwrap()
    }

    /// Starts a gateway that fetches this directory every 50 ms.
    fn gateway(&self) -> Running {
        self.gateway_with(|_| {})
    }

    fn gateway_polling_every(&self, poll: ConfigDuration) -> Running {
        self.gateway_with(|config| config.issuer.poll = poll)
    }

    fn gateway_with(&self, change: impl FnOnce(&mut Config)) -> Running {
        let url = format!("http://{}/.well-known/private-token-issuer-directory", self.address);
        Running::start_in(TempDir::new().unwrap(), |config| {
            config.issuer.keys = None;
            config.issuer.directory = Some(url);
            config.issuer.poll = ConfigDuration::millis(50);
            config.listen.patience = ConfigDuration::millis(0);
            change(config);
        })
        .unwrap()
    }
}

fn plain(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

fn find_in(bytes: &[u8], text: &str) -> bool {
    crate::support::client::find(bytes, text.as_bytes()).is_some()
}

async fn ask(gateway: &Running, echo: &Echo, issuer: &Issuer) -> crate::support::client::Answer {
    Client::ask(gateway.address, connect_with(echo.address, &[&issuer.authorization()])).await
}

#[tokio::test]
async fn without_a_key_the_answer_is_503_and_the_gateway_is_not_ready_until_one_comes() {
    let (mut issuer, echo) = (FakeDirectory::start().await, Echo::start().await);
    let gateway = issuer.gateway();
    issuer.next().await;
    gateway.readiness_is(|reasons| reasons.iter().any(|reason| reason.contains("answered 503"))).await;
    ask(&gateway, &echo, &ISSUER).await.assert_refused(503, "proxy_internal_error", "no issuer key");
    // Without a token the same: there is no challenge to give.
    let answer = Client::ask(gateway.address, connect_with(echo.address, &[])).await;
    answer.assert_refused(503, "proxy_internal_error", "no issuer key");
    issuer.lists("one", &[&ISSUER]);
    gateway.ready().await;
    ask(&gateway, &echo, &ISSUER).await.assert_opened();
}

#[tokio::test]
async fn an_unchanged_directory_is_not_sent_again_and_a_changed_one_is_used() {
    let (mut issuer, echo) = (FakeDirectory::start().await, Echo::start().await);
    let second = Issuer::new();
    issuer.lists("one", &[&ISSUER]);
    let gateway = issuer.gateway();
    gateway.ready().await;
    assert_eq!(issuer.next().await.as_deref(), Some("\"one\""));
    ask(&gateway, &echo, &second).await.assert_refused(407, "http_request_denied", "does not know");
    issuer.lists("two", &[&second, &ISSUER]);
    while issuer.next().await.as_deref() != Some("\"two\"") {}
    for known in [&second, &*ISSUER] {
        bound(known).await;
        ask(&gateway, &echo, known).await.assert_opened();
    }
    // A key that is no longer listed stays good for its grace.
    issuer.lists("three", &[&second]);
    while issuer.next().await.as_deref() != Some("\"three\"") {}
    ask(&gateway, &echo, &ISSUER).await.assert_opened();
}

#[tokio::test]
async fn a_directory_that_fails_takes_no_key_away() {
    let (mut issuer, echo) = (FakeDirectory::start().await, Echo::start().await);
    issuer.lists("one", &[&ISSUER]);
    let gateway = issuer.gateway();
    gateway.ready().await;
    let failures = [
        plain("500 Internal Server Error", "", b"oops"),
        plain("200 OK", "ETag: \"bad\"\r\n", b"{ not json"),
        plain("200 OK", "ETag: \"bad\"\r\n", &directory(vec![])),
        plain("200 OK", "ETag: \"bad\"\r\n", &vec![b' '; 2 << 20]),
        plain("301 Moved Permanently", "Location: http://127.0.0.1:1/\r\n", b""),
        b"not HTTP\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_vec(),
        Vec::new(),
    ];
    for failure in failures {
        issuer.answers(failure);
        issuer.next().await;
        // A directory that could not be used must not be revalidated as if it were known.
        assert_eq!(issuer.next().await.as_deref(), Some("\"one\""));
        ask(&gateway, &echo, &ISSUER).await.assert_opened();
        assert_eq!(gateway.readiness.reasons(), [""; 0]);
    }
    let second = Issuer::new();
    issuer.lists("two", &[&second]);
    while issuer.next().await.as_deref() != Some("\"two\"") {}
    bound(&second).await;
    ask(&gateway, &echo, &second).await.assert_opened();
}

#[tokio::test]
async fn a_file_of_keys_is_read_again_on_a_signal_and_a_broken_one_changes_nothing() {
    let (gateway, echo) = (Running::start().await, Echo::start().await);
    let file = gateway.home().join("keys.json");
    let second = Issuer::new();
    std::fs::write(&file, directory(vec![second.entry(None, None)])).unwrap();
    ask(&gateway, &echo, &second).await.assert_refused(407, "http_request_denied", "does not know");
    gateway.shutdown.reload();
    while ask(&gateway, &echo, &second).await.status != 200 {}
    std::fs::write(&file, "{").unwrap();
    gateway.shutdown.reload();
    // The broken file is read again and again until it is whole: at once, for no key is lost.
    for _ in 0..20 {
        ask(&gateway, &echo, &second).await.assert_opened();
    }
    let third = Issuer::new();
    std::fs::write(&file, directory(vec![third.entry(None, None)])).unwrap();
    gateway.shutdown.reload();
    while ask(&gateway, &echo, &third).await.status != 200 {}
}

#[tokio::test]
async fn a_gateway_whose_file_of_keys_is_missing_starts_and_waits_for_it() {
    let home = TempDir::new().unwrap();
    let gateway = Running::start_in(home, |_| {}).unwrap();
    gateway.readiness_is(|reasons| reasons.iter().any(|reason| reason.contains("keys.json"))).await;
    std::fs::write(gateway.home().join("keys.json"), directory(vec![ISSUER.entry(None, None)])).unwrap();
    gateway.ready().await;
}

/// A forced rotation: the gateway learns of it from the first token, and fetches no more often than necessary.
#[tokio::test]
async fn a_token_of_an_unknown_key_makes_the_gateway_fetch_soon_and_a_flood_of_them_changes_nothing() {
    let (mut issuer, echo) = (FakeDirectory::start().await, Echo::start().await);
    let second = Issuer::new();
    issuer.lists("one", &[&ISSUER]);
    let gateway = issuer.gateway_polling_every(ConfigDuration::hours(1));
    gateway.ready().await;
    issuer.lists("two", &[&second, &ISSUER]);
    let began = Instant::now();
    let mut refused = 0;
    while ask(&gateway, &echo, &second).await.status != 200 {
        refused += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(
            began.elapsed() < crate::support::PATIENCE,
            "the new key is not known after {refused} tokens"
        );
    }
    assert!(refused > 0);
    // Keys that do not exist: they cause one fetch in three seconds.
    while issuer.asked.try_recv().is_ok() {}
    let (stranger, began) = (Issuer::new(), Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(ask(&gateway, &echo, &stranger).await.status, 407);
    }
    let mut asked = 0;
    while let Ok(etag) = issuer.asked.try_recv() {
        assert_eq!(etag.as_deref(), Some("\"two\""), "fetched conditionally");
        asked += 1;
    }
    let most = 1 + began.elapsed().as_secs() / 3;
    assert!(asked <= most, "{asked} fetches in {:?}", began.elapsed());
}

#[tokio::test]
async fn the_directory_is_fetched_again_when_its_answer_is_too_old() {
    let mut issuer = FakeDirectory::start().await;
    let fields = "ETag: \"one\"\r\nCache-Control: public, max-age=1\r\n";
    issuer.answers(plain("200 OK", fields, &directory(vec![ISSUER.entry(None, None)])));
    let gateway = issuer.gateway_polling_every(ConfigDuration::hours(1));
    gateway.ready().await;
    while issuer.asked.try_recv().is_ok() {}
    let began = Instant::now();
    issuer.next().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_directory_is_fetched_again_when_a_known_key_takes_over() {
    let mut issuer = FakeDirectory::start().await;
    let (second, now) = (Issuer::new(), postern_token::UnixSeconds::now().0);
    let keys =
        vec![ISSUER.entry(Some(now - 100), Some(now + 1000)), second.entry(Some(now + 3), Some(now + 2000))];
    issuer.answers(plain("200 OK", "ETag: \"one\"\r\n", &directory(keys)));
    let gateway = issuer.gateway_polling_every(ConfigDuration::hours(1));
    gateway.ready().await;
    while issuer.asked.try_recv().is_ok() {}
    issuer.next().await;
    let asked = postern_token::UnixSeconds::now().0;
    assert!((now + 3..now + 10).contains(&asked), "{} s after the start", asked - now);
}

/// A key whose records the store has given up is no key to ask for, although the issuer lists it.
#[tokio::test]
async fn a_key_that_the_store_has_retired_leaves_the_challenge_and_readiness_says_when_none_is_left() {
    let (newer, echo) = (Issuer::new(), Echo::start().await);
    let home = Running::start().await.stop().await;
    let now = UnixSeconds::now().0;
    let listed = vec![
        newer.entry(Some(now - 30), Some(now + 86_400)),
        ISSUER.entry(Some(now - 60), Some(now + 86_400)),
    ];
    std::fs::write(home.path().join("keys.json"), directory(listed)).unwrap();
    let tombstone = |home: &TempDir, issuer: &Issuer| {
        let name = format!("{}.retired", issuer.key_id().to_hex());
        std::fs::write(home.path().join("spent").join(name), "").unwrap();
    };
    tombstone(&home, &newer);
    let gateway = Running::start_in(home, |_| {}).unwrap();
    gateway.ready().await;
    let answer = Client::ask(gateway.address, connect_with(echo.address, &[])).await;
    assert_eq!(answer.status, 407);
    assert_eq!(asked_for(&answer), ISSUER.public_key(), "tokens of the newer key would be refused");
    let refused = Client::ask(gateway.address, connect_with(echo.address, &[&newer.authorization()])).await;
    assert_eq!(refused.status, 407);
    let good = connect_with(echo.address, &[&ISSUER.authorization()]);
    Client::ask(gateway.address, good).await.assert_opened();

    let home = gateway.stop().await;
    std::fs::remove_file(home.path().join("spent").join(format!("{}.spent", ISSUER.key_id().to_hex())))
        .unwrap();
    tombstone(&home, &ISSUER);
    let gateway = Running::start_in(home, |_| {}).unwrap();
    gateway
        .readiness_is(|reasons| {
            reasons.iter().any(|text| text.contains("the store has retired 2 token keys"))
        })
        .await;
}

/// The key in the challenge of an answer.
fn asked_for(answer: &Answer) -> Vec<u8> {
    let challenges = Challenge::parse_all(answer.value("proxy-authenticate").as_bytes()).unwrap();
    challenges[0].token_key.clone().expect("it names a key")
}
