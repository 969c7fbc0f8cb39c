//! The same work as `benches/token.rs`, but the minimum over many short batches, taken in turns: on a busy
//! machine, criterion's means show the load, and minima the cost of the code.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use blind_rsa_signatures::{BlindMessage, Deterministic, PSS, PublicKey, SecretKey, Sha384, Signature};
use postern_token::header::{Presentation, format_authorization, parse_authorization};
use postern_token::*;
use privacypass::{auth::authorize::parse_authorization_header, public_tokens::PublicToken};
use std::hint::black_box;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

struct Case<'a> {
    name: &'static str,
    /// Runs in one batch: a batch should end before the scheduler takes the core away.
    batch: u32,
    run: Box<dyn FnMut() + 'a>,
    least: Duration,
}

fn case<'a>(name: &'static str, batch: u32, run: impl FnMut() + 'a) -> Case<'a> {
    Case { name, batch, run: Box::new(run), least: Duration::MAX }
}

fn read(value: &str) -> Token {
    match parse_authorization(black_box(value.as_bytes())).unwrap() {
        Presentation::Token(token) => token,
        Presentation::OtherScheme => panic!("no token"),
    }
}

fn main() {
    let pkcs8 = SigningKey::generate_pkcs8().unwrap();
    let signing = SigningKey::from_pkcs8(&pkcs8).unwrap();
    let issuer = IssuerKey::from_spki(signing.public_key()).unwrap();
    let challenge = ChallengeDigest::of(b"challenge");
    let (request, pending) = issuer.request(challenge).unwrap();
    let token = pending.finalize(&signing.sign(&request).unwrap()).unwrap();
    let quoted = format_authorization(&token);
    let chromium = format!("{quoted} extensions=\"AAAA\"");
    let bare = quoted.replace('"', "");
    let header = http::HeaderValue::from_str(&bare).unwrap();
    let text = URL_SAFE.encode(token.as_bytes());
    let key = Arc::new(VerifyingKey::from_spki(signing.public_key()).unwrap());
    let keys = KeySet::new([TrustedKey::new(Arc::clone(&key), Window::ALWAYS)]);
    let theirs = PublicKey::<Sha384, PSS, Deterministic>::from_spki(signing.public_key()).unwrap();
    let signature = Signature(token.authenticator().to_vec());
    let their_secret = SecretKey::<Sha384, PSS, Deterministic>::from_der(&pkcs8).unwrap();
    let blinded = BlindMessage(request.blinded_message().to_vec());
    let (ask, asked) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel::<()>();
    std::thread::spawn(move || asked.iter().try_for_each(|()| answer.send(())));
    let mut buffer = [0; 400];

    let mut cases = [
        case("base64 decode alone", 200, || {
            black_box(URL_SAFE.decode_slice(black_box(&text), &mut buffer).unwrap());
        }),
        case("header value to token, quoted", 100, || {
            black_box(read(&quoted));
        }),
        case("header value to token, Chromium's", 100, || {
            black_box(read(&chromium));
        }),
        case("header value to token, bare", 100, || {
            black_box(read(&bare));
        }),
        case("header value to checked token and spent key", 100, || {
            let token = read(&quoted);
            assert!(token.challenge_digest() == challenge);
            keys.find(token.token_key_id(), UnixSeconds(1)).unwrap();
            black_box(token.spent_key());
        }),
        case("privacypass crate: header value to token", 10, || {
            let token: PublicToken = parse_authorization_header(black_box(&header)).unwrap();
            black_box(token);
        }),
        case("verify", 5, || key.verify(black_box(&token)).unwrap()),
        case("blind-rsa-signatures: verify", 2, || {
            theirs.verify(black_box(&signature), None, token.signed_input()).unwrap();
        }),
        case("a question to another thread and its answer", 5, || {
            ask.send(()).unwrap();
            answered.recv().unwrap();
        }),
        case("blind-rsa-signatures: sign", 1, || {
            black_box(their_secret.blind_sign(black_box(&blinded)).unwrap());
        }),
        case("issuer: sign", 1, || {
            black_box(signing.sign(black_box(&request)).unwrap());
        }),
        case("client: blind", 1, || {
            black_box(issuer.request(challenge).unwrap());
        }),
    ];
    let seconds: u64 = std::env::var("SECONDS_TO_RUN").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        for case in &mut cases {
            let begin = Instant::now();
            (0..case.batch).for_each(|_| (case.run)());
            case.least = case.least.min(begin.elapsed() / case.batch);
        }
    }
    for case in &cases {
        println!("{:<48}{:>10.3} µs", case.name, case.least.as_secs_f64() * 1e6);
    }
}
