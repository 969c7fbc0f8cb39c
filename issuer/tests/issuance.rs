//! Token requests over real sockets, in raw bytes: every status, and tokens that verify.

use crate::support::{Answer, REQUEST_TYPE, Running, account, bearer, config, declare, post, request, rest};
use postern_config::ConfigDuration;
use postern_issuer::config::Signing;
use postern_token::{
    ChallengeDigest, DIRECTORY_PATH, IssuerKey, SigningKey, TokenChallenge, TokenRequest, TokenResponse,
    TokenType, VerifyingKey,
};
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn digest() -> ChallengeDigest {
    ChallengeDigest::of(b"some challenge")
}

/// A request that the issuer signs.
fn good(key: &IssuerKey) -> Vec<u8> {
    key.request(digest()).unwrap().0.serialize().to_vec()
}

#[tokio::test]
async fn a_token_of_the_issuer_verifies_under_the_key_it_publishes() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let key = issuer.key().await;
    let (request, pending) = key.request(digest()).unwrap();

    let answer = issuer.post("", &request.serialize()).await;
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert_eq!(answer.field("content-type"), Some("application/private-token-response"));
    assert_eq!(answer.field("content-length"), Some("256"));
    let token =
        pending.finalize(&TokenResponse::parse(TokenType::BlindRsa2048, &answer.body).unwrap()).unwrap();
    VerifyingKey::from_spki(key.public_key()).unwrap().verify(&token).unwrap();
    assert_eq!(token.challenge_digest(), digest());
}

#[tokio::test]
async fn another_implementations_client_gets_a_token_too() {
    use blind_rsa_signatures::reexports::rand::rng;
    use blind_rsa_signatures::{Deterministic, PSS, PublicKey, Sha384};
    use privacypass::auth::authenticate::TokenChallenge as TheirChallenge;
    use privacypass::{Deserialize, Serialize, public_tokens};

    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let key = issuer.key().await;
    let public = PublicKey::<Sha384, PSS, Deterministic>::from_spki(key.public_key()).unwrap();
    let names = ["proxy.example".to_owned()];
    let challenge = TheirChallenge::new(privacypass::TokenType::Public, "issuer.example", None, &names);
    let (request, state) = public_tokens::TokenRequest::new(&mut rng(), public, &challenge).unwrap();

    let answer = issuer.post("", &request.tls_serialize_detached().unwrap()).await;
    assert_eq!(answer.status, 200);
    let response = public_tokens::TokenResponse::tls_deserialize(&mut answer.body.as_slice()).unwrap();
    let token = response.issue_token(&state).unwrap().tls_serialize_detached().unwrap();

    let token = postern_token::Token::parse(&token).unwrap();
    VerifyingKey::from_spki(key.public_key()).unwrap().verify(&token).unwrap();
    let ours =
        TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example"]).unwrap();
    assert_eq!(token.challenge_digest(), ours.digest());
}

#[tokio::test]
async fn what_is_not_a_token_request_of_a_key_in_use_is_422_and_names_the_fault() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let key = issuer.key().await;
    let good = good(&key);
    let with = |offset: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[offset] = byte;
        bytes
    };
    let out_of_range = TokenRequest::new(key.id(), [0xff; 256]).serialize().to_vec();
    let number = |last: u8| {
        let mut message = [0; 256];
        message[255] = last;
        TokenRequest::new(key.id(), message).serialize().to_vec()
    };
    let cases = [
        (Vec::new(), "token_type"),
        (good[..258].to_vec(), "blinded_msg"),
        ([&good[..], b"\0"].concat(), "byte 259"),
        ([&good[..], &[0; 700]].concat(), "byte 259"),
        (with(1, 1), "byte 52"),
        (with(1, 3), "is not 1, 2 or 5"),
        (with(0, 0xda), "is not 1, 2 or 5"),
        (with(2, key.id().truncated().wrapping_add(1)), "Fetch the key directory again"),
        (out_of_range, "2 to n - 2"),
        (number(0), "2 to n - 2"),
        (number(1), "2 to n - 2"),
    ];
    for (body, said) in cases {
        let answer = issuer.post("", &body).await;
        assert_eq!(answer.status, 422, "{said}: {}", answer.text());
        assert!(answer.text().contains(said), "{}", answer.text());
        assert_eq!(answer.field("content-type"), Some("text/plain; charset=utf-8"));
    }
    assert_eq!(issuer.post("", &good).await.status, 200);
}

#[tokio::test]
async fn another_media_type_is_415_and_case_and_parameters_do_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let body = good(&issuer.key().await);
    let status = async |media_types: &[&str]| {
        let fields: String = media_types.iter().map(|value| format!("content-type: {value}\r\n")).collect();
        let fields = format!("{fields}content-length: {}\r\n", body.len());
        issuer.exchange(&request("POST", "/token-request", &fields, &body)).await.status
    };
    assert_eq!(status(&["Application/Private-Token-Request; v=1"]).await, 200);
    for wrong in [&[][..], &["application/octet-stream"], &[REQUEST_TYPE, REQUEST_TYPE]] {
        assert_eq!(status(wrong).await, 415, "{wrong:?}");
    }
}

#[tokio::test]
async fn other_paths_are_404_and_other_methods_405_with_allow() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    for path in ["/", "/token-request/", "/token-requests", "*"] {
        let method = if path == "*" { "OPTIONS" } else { "POST" };
        assert_eq!(issuer.exchange(&request(method, path, "", b"")).await.status, 404, "{path}");
    }
    for method in ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "BREW"] {
        let answer = issuer.exchange(&request(method, "/token-request", "", b"")).await;
        assert_eq!((answer.status, answer.field("allow")), (405, Some("POST")), "{method}");
    }
}

/// A web page whose name leads to loopback can request tokens, but only under its own name.
#[tokio::test]
async fn an_issuer_open_to_its_machine_answers_to_an_address_and_one_with_accounts_to_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let asked = |host: &str| {
        let head = format!("GET {DIRECTORY_PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        head.into_bytes()
    };
    let open = Running::start(config(directory.path())).await;
    for (host, status) in [
        ("localhost:8081", 200),
        ("Localhost", 200),
        ("127.0.0.1", 200),
        ("[::1]:8081", 200),
        ("page.example", 421),
        ("page.example:8081", 421),
        ("127.0.0.1.page.example", 421),
    ] {
        assert_eq!(open.exchange(&asked(host)).await.status, status, "{host}");
    }
    open.stop().await;
    let config = config(directory.path());
    declare(&config, &[account("someone", "k", "5/1h")]);
    let with_accounts = Running::start(config).await;
    assert_eq!(with_accounts.exchange(&asked("issuer.example")).await.status, 200);
}

#[tokio::test]
async fn a_body_too_long_is_413_before_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let declared =
        format!("content-type: {REQUEST_TYPE}\r\nexpect: 100-continue\r\ncontent-length: 1025\r\n");
    assert_eq!(issuer.exchange(&request("POST", "/token-request", &declared, b"")).await.status, 413);

    let chunked = format!("content-type: {REQUEST_TYPE}\r\ntransfer-encoding: chunked\r\n");
    let body = [b"401\r\n".as_slice(), &[7; 0x401], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(issuer.exchange(&request("POST", "/token-request", &chunked, &body)).await.status, 413);
}

#[tokio::test]
async fn chunked_bodies_and_bodies_after_100_continue_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let body = good(&issuer.key().await);
    let chunked = format!("content-type: {REQUEST_TYPE}\r\ntransfer-encoding: chunked\r\n");
    let chunks = [b"3\r\n", &body[..3], b"\r\n100\r\n", &body[3..], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(issuer.exchange(&request("POST", "/token-request", &chunked, &chunks)).await.status, 200);

    let expecting =
        format!("content-type: {REQUEST_TYPE}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n", body.len());
    let mut stream = issuer.connect().await;
    stream.write_all(&request("POST", "/token-request", &expecting, b"")).await.unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).await.unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.status, 200);
}

#[tokio::test]
async fn a_request_that_two_servers_may_read_in_two_ways_is_refused_and_the_connection_closed() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let start = format!("POST /token-request HTTP/1.1\r\ncontent-type: {REQUEST_TYPE}\r\n");
    let smuggled = "GET /.well-known/private-token-issuer-directory HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let cases = [
        "content-length: 0\r\n\r\n".to_owned(),
        "host: localhost\r\nhost: b\r\ncontent-length: 0\r\n\r\n".to_owned(),
        format!(
            "host: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n{smuggled}"
        ),
        format!(
            "host: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"
        ),
        format!("host: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef{smuggled}"),
        format!("host: localhost\r\ncontent-length: +5\r\n\r\nabcde{smuggled}"),
        format!("host: localhost\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("host: localhost\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("host: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{smuggled}"),
        format!("host: localhost\r\nx: 1\r\n folded: 2\r\ncontent-length: 0\r\n\r\n{smuggled}"),
        "host: localhost\r\nx: \0\r\ncontent-length: 0\r\n\r\n".to_owned(),
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut stream = issuer.connect().await;
        stream.write_all(format!("{start}{case}").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = Answer::read(&mut stream).await;
        // With both lengths the body is read as chunked, as RFC 9112 (section 6.3) allows: it is empty, and no token
        // request. What matters is that nothing after it is answered.
        let expected = if matches!(number, 2 | 3) { 422 } else { 400 };
        assert_eq!(answer.status, expected, "case {number}: {}", answer.head);
        assert!(!answer.text().contains("token-keys"), "case {number} smuggled a request");
    }
}

#[tokio::test]
async fn a_large_header_is_431() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let large = format!("x: {}\r\n", "a".repeat(20_000));
    let mut stream = issuer.connect().await;
    let sending = request("GET", "/", &large, b"");
    let _ = stream.write_all(&sending).await; // the issuer need not read all of it
    let mut start = [0; 12];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 431");
}

#[tokio::test]
async fn slow_bodies_are_408_and_slow_headers_and_idle_connections_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.limits.body_timeout = ConfigDuration::millis(200);
    config.limits.header_timeout = ConfigDuration::millis(300);
    let issuer = Running::start(config).await;
    let body = good(&issuer.key().await);
    let whole = post("", &body);
    let answer = issuer.exchange(&whole[..whole.len() - 1]).await;
    assert_eq!(answer.status, 408, "{}", answer.head);

    for beginning in [&b""[..], b"GET / HT"] {
        let mut stream = issuer.connect().await;
        stream.write_all(beginning).await.unwrap();
        rest(&mut stream).await;
    }
    let mut kept = issuer.connect().await;
    kept.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(Answer::read(&mut kept).await.status, 404); // and then the end, which the client did not request
}

#[tokio::test]
async fn without_an_account_it_is_401() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    declare(&config, &[account("one", "the key of one", "5/1d")]);
    let issuer = Running::start(config).await;
    let body = good(&issuer.key().await);
    for fields in
        ["", "authorization: Basic dGVzdA==\r\n", &bearer("the key of two"), &bearer("the key of on")]
    {
        let answer = issuer.post(fields, &body).await;
        assert_eq!((answer.status, answer.field("www-authenticate")), (401, Some("Bearer")), "{fields}");
        assert!(!answer.text().contains("the key"), "{}", answer.text());
    }
    assert_eq!(issuer.post(&bearer("the key of one"), &body).await.status, 200);
}

#[tokio::test]
async fn a_spent_quota_is_429_and_only_signatures_count() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    declare(&config, &[account("one", "k1", "2/36500d"), account("two", "k2", "1/36500d")]);
    let issuer = Running::start(config).await;
    let key = issuer.key().await;
    let body = good(&key);
    let refused = TokenRequest::new(key.id(), [0xff; 256]).serialize();
    assert_eq!(issuer.post(&bearer("k1"), &body[..100]).await.status, 422);
    assert_eq!(issuer.post(&bearer("k1"), &refused).await.status, 422);
    assert_eq!(issuer.post(&bearer("k1"), &body).await.status, 200);
    assert_eq!(issuer.post(&bearer("k1"), &body).await.status, 200);
    let answer = issuer.post(&bearer("k1"), &body).await;
    assert_eq!(answer.status, 429);
    let wait: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!(wait > 0 && wait <= 36_500 * 86_400, "{wait}");
    assert_eq!(issuer.post(&bearer("k2"), &body).await.status, 200);
}

/// All but the last byte of each request is sent first, so that all of them become whole at once.
#[tokio::test]
async fn when_every_place_is_taken_it_is_503_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.signing = Signing { threads: NonZeroUsize::new(1), queue: 1 };
    declare(&config, &[account("one", "k1", "64/36500d")]);
    let issuer = Running::start(config).await;
    let whole = post(&bearer("k1"), &good(&issuer.key().await));
    let (last, rest) = whole.split_last().unwrap();
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut stream = issuer.connect().await;
        stream.write_all(rest).await.unwrap();
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.write_all(&[*last]).await.unwrap();
    }
    let (mut issued, mut refused) = (0, 0);
    for stream in &mut streams {
        let answer = Answer::read(stream).await;
        match answer.status {
            200 => issued += 1,
            503 => {
                assert_eq!(answer.field("retry-after"), Some("1"));
                refused += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    assert!(issued >= 2 && refused >= 1 && issued + refused == 64, "{issued} issued, {refused} refused");
    // Requests refused for load were not counted: the rest of the quota is still there, to the token.
    for _ in issued..64 {
        assert_eq!(issuer.exchange(&whole).await.status, 200);
    }
    assert_eq!(issuer.exchange(&whole).await.status, 429);
}

/// One account asks over 150 connections, each again as soon as it is answered; another one asks once at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_floods_takes_no_turn_from_another() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.signing = Signing { threads: NonZeroUsize::new(1), queue: 32 };
    declare(&config, &[account("one", "k1", "1000000/36500d"), account("two", "k2", "100/36500d")]);
    let issuer = Arc::new(Running::start(config).await);
    let body = good(&issuer.key().await);
    let flood = post(&bearer("k1"), &body);
    let (refused, mut told) = tokio::sync::mpsc::channel(1);
    let mut connections = tokio::task::JoinSet::new();
    for _ in 0..150 {
        let (issuer, flood, refused) = (issuer.clone(), flood.clone(), refused.clone());
        connections.spawn(async move {
            loop {
                let answer = issuer.exchange(&flood).await;
                if answer.status != 200 {
                    let _ = refused.try_send(answer);
                }
            }
        });
    }
    let first = told.recv().await.unwrap();
    assert_eq!((first.status, first.field("retry-after")), (503, Some("1")));
    assert!(
        first.text().contains("this account has more requests waiting than any other"),
        "{}",
        first.text()
    );
    for number in 0..40 {
        let answer = issuer.post(&bearer("k2"), &body).await;
        assert_eq!(answer.status, 200, "{number}: {}", answer.text());
    }
    connections.shutdown().await;
}

#[tokio::test]
async fn a_foreign_key_that_shares_the_truncated_id_gives_no_token() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(config(directory.path())).await;
    let ours = issuer.key().await;
    let foreign = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
    let (request, pending) = IssuerKey::from_spki(foreign.public_key()).unwrap().request(digest()).unwrap();
    let mut bytes = request.serialize();
    bytes[2] = ours.id().truncated();
    bytes[3] = 0; // below any modulus
    let answer = issuer.post("", &bytes).await;
    assert_eq!(answer.status, 200);
    assert!(pending.finalize(&TokenResponse::parse(TokenType::BlindRsa2048, &answer.body).unwrap()).is_err());
}
