//! The life of an issuer: what it publishes, what survives a restart, when it refuses to start, how it stops.

use crate::support::{Answer, Running, account, bearer, certified, config, declare, post, request, rest};
use postern_config::{ConfigDuration, parse};
use postern_daemon::admin::ProcessContext;
use postern_daemon::exit;
use postern_daemon::http::{ClientOptions, client, fetch_limited};
use postern_issuer::control::AccountsFile;
use postern_issuer::{Config, Issuer, StartError};
use postern_token::{ChallengeDigest, DIRECTORY_PATH, Directory, TokenResponse, TokenType, UnixSeconds};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn refusal(config: Config) -> StartError {
    Issuer::bind(config, &ProcessContext::default()).await.unwrap_err()
}

#[tokio::test]
async fn the_directory_is_cacheable_and_a_known_one_is_304() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let first = issuer.get("").await;
    assert_eq!(first.status, 200);
    assert!(issuer.process.readiness.reasons().is_empty());
    assert_eq!(first.field("content-type"), Some("application/private-token-issuer-directory"));
    assert_eq!(first.field("cache-control"), Some("public, max-age=3600"));
    let etag = first.field("etag").unwrap().to_owned();
    let listed = Directory::parse(&first.body).unwrap();
    assert_eq!((listed.issuer_request_uri.as_str(), listed.token_keys.len()), ("/token-request", 1));
    let key = &listed.token_keys[0];
    assert!(key.not_before.unwrap() <= UnixSeconds::now() && key.not_after.unwrap() > UnixSeconds::now());

    for known in [etag.clone(), format!("\"other\", W/{etag}"), "*".to_owned()] {
        let answer = issuer.get(&format!("if-none-match: {known}\r\n")).await;
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{known}");
        assert_eq!(answer.field("etag"), Some(etag.as_str()));
        assert!(answer.field("cache-control").is_some());
    }
    assert_eq!(issuer.get("if-none-match: \"other\"\r\n").await.status, 200);

    let head = issuer.exchange(&request("HEAD", DIRECTORY_PATH, "", b"")).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("content-length"), first.field("content-length"));
    assert_eq!(head.field("etag"), Some(etag.as_str()));
    let post = issuer.exchange(&request("POST", DIRECTORY_PATH, "", b"")).await;
    assert_eq!((post.status, post.field("allow")), (405, Some("GET, HEAD")));
}

#[tokio::test]
async fn a_restart_keeps_key_etag_and_quota_counts() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    declare(&config, &[account("one", "k1", "2/36500d")]);
    let first = Running::start(config.clone()).await;
    let before = first.get("").await;
    let body = first.good().await;
    assert_eq!(first.post(&bearer("k1"), &body).await.status, 200);
    first.stop().await;

    let second = Running::start(config.clone()).await;
    let after = second.get("").await;
    assert_eq!((&after.body, after.field("etag")), (&before.body, before.field("etag")));
    assert_eq!(second.post(&bearer("k1"), &body).await.status, 200);
    assert_eq!(second.post(&bearer("k1"), &body).await.status, 429);
    second.stop().await;
    let third = Running::start(config).await;
    assert_eq!(third.post(&bearer("k1"), &body).await.status, 429);
}

#[tokio::test]
async fn counts_are_on_disk_within_seconds_without_a_stop() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    declare(&config, &[account("the account", "k1", "2/36500d")]);
    let issuer = Running::start(config).await;
    assert_eq!(issuer.post(&bearer("k1"), &issuer.good().await).await.status, 200);
    let database = rusqlite::Connection::open(directory.path().join("keys/accounts.sqlite")).unwrap();
    until(|| async {
        // First what is reserved, which would count as used after a crash, and soon the exact figure.
        let sql = "SELECT tokens FROM usage WHERE account = 'the account'";
        database.query_row(sql, [], |row| row.get::<_, i64>(0)).ok().filter(|tokens| *tokens == 1)
    })
    .await;
}

#[tokio::test]
async fn a_running_issuer_rotates_its_keys() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.keys.rotate_every = ConfigDuration::secs(2);
    config.keys.publish_ahead = ConfigDuration::secs(1);
    config.keys.redeem_for = ConfigDuration::secs(25);
    let issuer = Running::start(config).await;
    let first = issuer.key().await;
    let second = until(|| async { Some(issuer.key().await).filter(|key| key.id() != first.id()) }).await;
    for key in [first, second] {
        let (request, pending) = key.request(ChallengeDigest::of(b"challenge")).unwrap();
        let answer = issuer.post("", &request.serialize()).await;
        assert_eq!(answer.status, 200, "around a change both keys sign: {}", answer.text());
        pending.finalize(&TokenResponse::parse(TokenType::BlindRsa2048, &answer.body).unwrap()).unwrap();
    }
}

/// Tries again until there is an answer, for ten seconds at most: from outside there is no event to wait for.
async fn until<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it did not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_drain_answers_open_requests_and_closes_idle_connections() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.header_timeout = ConfigDuration::minutes(5); // it is not what closes the idle connection
    let issuer = Running::start(config).await;
    let whole = post("", &issuer.good().await);
    let end_of_head = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let (head, body) = whole.split_at(end_of_head + 2);
    let mut idle = issuer.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answered = [0; 12];
    idle.read_exact(&mut answered).await.unwrap();
    let mut asking = issuer.connect().await;
    // The interim answer proves that the issuer is in the middle of the request when the drain begins.
    asking.write_all(&[head, b"expect: 100-continue\r\n\r\n"].concat()).await.unwrap();
    let mut interim = [0; 25];
    asking.read_exact(&mut interim).await.unwrap();

    issuer.process.shutdown.drain();
    rest(&mut idle).await;
    asking.write_all(&body[2..]).await.unwrap();
    assert_eq!(Answer::read(&mut asking).await.status, 200);
    let address = issuer.address;
    issuer.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_drain_answers_a_connection_that_waits_for_a_place() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(); // never answers
    let mut config = config(directory.path());
    config.limits.connections = std::num::NonZeroUsize::MIN;
    let url = format!("http://{}/authorize", authorizer.local_addr().unwrap());
    config.authorizer = serde_json::from_value(serde_json::json!({ "url": url, "timeout": "1s" })).unwrap();
    let issuer = Running::start(config).await;
    let mut asking = issuer.connect().await;
    asking.write_all(&post(&bearer("k-1"), &[0; 10])).await.unwrap();
    let _question = authorizer.accept().await.unwrap();
    let mut waiting = issuer.connect().await;
    waiting.write_all(&request("GET", DIRECTORY_PATH, "", b"")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await; // it is accepted
    issuer.process.shutdown.drain();
    assert_eq!(Answer::read(&mut asking).await.status, 503);
    assert_eq!(Answer::read(&mut waiting).await.status, 200);
    issuer.stop().await;
}

#[tokio::test]
async fn a_drain_answers_connections_that_the_kernel_has_accepted() {
    use std::io::Write;

    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    issuer.get("").await;
    // Without an `await`, so that the issuer does not run before the drain.
    let connect = |_| {
        let mut stream = std::net::TcpStream::connect(issuer.address).unwrap();
        stream.write_all(&request("GET", DIRECTORY_PATH, "", b"")).unwrap();
        stream.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(stream).unwrap()
    };
    let waiting: Vec<_> = (0..9).map(connect).collect();
    issuer.process.shutdown.drain();
    for mut stream in waiting {
        assert_eq!(Answer::read(&mut stream).await.status, 200);
    }
    issuer.stop().await;
}

#[tokio::test]
async fn without_accounts_it_listens_on_loopback_only() {
    let directory = tempfile::tempdir().unwrap();
    for open in ["0.0.0.0:0", "[::]:0"] {
        let mut config = config(directory.path());
        config.listen.address = open.parse().unwrap();
        let error = refusal(config).await;
        assert!(matches!(error, StartError::Open { .. }));
        assert_eq!(error.exit_code(), exit::CONFIG);
        assert!(error.to_string().contains("account apply"), "{error}");
    }
    assert!(!directory.path().join("keys").exists(), "nothing is made for a configuration that is refused");
}

#[tokio::test]
async fn a_corrupt_key_a_used_directory_and_a_used_port_stop_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::start(config(directory.path())).await;
    let error = refusal(config(directory.path())).await;
    assert_eq!(error.exit_code(), exit::RUNTIME);
    assert!(error.to_string().contains("another postern has"), "{error}");
    let other = tempfile::tempdir().unwrap();
    let mut taken = config(other.path());
    taken.listen.address = running.address;
    let error = refusal(taken).await;
    assert!(matches!(error, StartError::Listen(_)) && error.exit_code() == exit::RUNTIME, "{error}");
    running.stop().await;

    let files =
        || std::fs::read_dir(directory.path().join("keys")).unwrap().map(|entry| entry.unwrap().path());
    let key = files().find(|path| path.extension().is_some_and(|extension| extension == "p8")).unwrap();
    let sound = std::fs::read(&key).unwrap();
    std::fs::write(&key, &sound[..sound.len() / 2]).unwrap();
    let error = refusal(config(directory.path())).await;
    assert_eq!(error.exit_code(), exit::RUNTIME);
    assert!(error.to_string().contains("is corrupt") && error.to_string().contains("backup"), "{error}");
    assert_eq!(files().filter(|path| path.extension().is_some_and(|extension| extension == "p8")).count(), 1);
}

#[tokio::test]
async fn it_serves_tls_from_certificate_files() {
    let directory = tempfile::tempdir().unwrap();
    let tls = certified(directory.path());
    let mut config = config(directory.path());
    config.tls = Some(tls.clone());
    let issuer = Running::start(config.clone()).await;
    let options = ClientOptions { ca_file: tls.certificate, ..ClientOptions::default() };
    let url = format!("https://localhost:{}{DIRECTORY_PATH}", issuer.address.port());
    let response = client(&options).unwrap().get(url).send().await.unwrap();
    let body = fetch_limited(response, 65_536).await.unwrap();
    assert_eq!(Directory::parse(&body).unwrap().token_keys.len(), 1);
    issuer.stop().await;

    std::fs::write(tls.key.as_ref().unwrap(), "nothing").unwrap();
    let error = refusal(config).await;
    assert!(matches!(error, StartError::Tls(_)) && error.exit_code() == exit::CONFIG, "{error}");
}

fn read(text: &str) -> Result<Config, String> {
    parse("issuer.toml", text, []).map_err(|error| error.to_string())
}

#[test]
fn a_configuration_names_everything_and_defaults_serve() {
    let small = read("[keys]\ndirectory = \"keys\"").unwrap();
    assert_eq!(small.keys.directory, Path::new("keys"));
    assert_eq!(small.keys.rotate_every, ConfigDuration::days(30));
    let full = read(
        "[listen]\naddress = \"0.0.0.0:443\"\nadmin = \"127.0.0.1:9091\"\n\
         [tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n\
         [keys]\ndirectory = \"keys\"\nrotate_every = \"7d\"\npublish_ahead = \"12h\"\nredeem_for = \"1d\"\n\
         [signing]\nthreads = 2\nqueue = 64\n\
         [directory]\nissuer_request_uri = \"https://issuer.example/token-request\"\nmax_age = \"10m\"\n\
         [limits]\nheader_timeout = \"5s\"\nbody_timeout = \"5s\"\nconnections = 100\n\
         [drain]\ndeadline = \"5s\"\n[log]\nformat = \"json\"\n",
    )
    .unwrap();
    assert_eq!(full.limits.connections.get(), 100);
}

#[test]
fn mistakes_in_a_configuration_are_sentences() {
    let keys = "[keys]\ndirectory = \"keys\"\n";
    let cases = [
        ("[[tiers]]\nname = \"a\"\nquota = \"many\"", "such as \"10000/1d\""),
        ("[signing]\nthreads = 0", "threads"),
        ("[limits]\nconnection = 5", "connections"),
    ];
    for (text, said) in cases {
        let error = read(&format!("{keys}{text}")).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn mistakes_in_a_file_of_accounts_are_sentences_without_an_api_key() {
    let read = |text: &str| {
        parse::<AccountsFile>("accounts.toml", &format!("[[accounts]]\nname = \"a\"\n{text}"), [])
    };
    let hash = "ab".repeat(32);
    for (text, said) in [
        ("key_sha256 = \"my-api-key\"\nquota = \"1/1d\"", "line 3: accounts[0].key_sha256"),
        ("key_sha256 = \"my-api-key\"\nquota = \"1/1d\"", "64 hex digits"),
        ("key_sha256 = \"00\"\nquotas = \"1/1d\"", "quota"),
        (&format!("key_sha256 = \"{hash}\"\nquota = \"many\""), "such as \"10000/1d\""),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(!error.contains("my-api-key"), "an API key in the wrong place is shown: {error}");
    }
    let file = read(&format!("key_sha256 = \"{hash}\"\nquota = \"1/1d\"")).unwrap();
    assert!(!format!("{file:?}").contains(&hash), "hashes of API keys stay out of Debug");
}

#[tokio::test]
async fn values_that_make_no_sense_together_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    type Change = fn(&mut Config);
    let cases: [(Change, &str); 8] = [
        (
            |config| config.keys.publish_ahead = ConfigDuration::days(30),
            "publish_ahead (30d) must be shorter",
        ),
        (|config| config.keys.rotate_every = ConfigDuration::millis(999), "one second at least"),
        (|config| config.keys.redeem_for = ConfigDuration::days(3650), "more than 16 keys"),
        (|config| config.directory.issuer_request_uri = "token-request".to_owned(), "issuer_request_uri"),
        (
            |config| config.directory.issuer_request_uri = DIRECTORY_PATH.to_owned(),
            "the directory's own path",
        ),
        (
            |config| config.directory.issuer_request_uri = "/openapi.json".to_owned(),
            "the path of the API description",
        ),
        (|config| config.directory.issuer_request_uri = "/{tenant}".to_owned(), "has a brace"),
        (|config| config.limits.body_timeout = ConfigDuration::secs(0), "body_timeout"),
    ];
    for (change, said) in cases {
        let mut config = config(directory.path());
        change(&mut config);
        let error = refusal(config).await;
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(error.exit_code(), exit::CONFIG);
    }
}
