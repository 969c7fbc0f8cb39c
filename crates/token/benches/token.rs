//! Cost of a token: reading, checking, verifying, signing, blinding; compared with other implementations.
//! `crates/token/benches/README.md` describes how to run it, and has the results.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may panic")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use blind_rsa_signatures::{BlindMessage, Deterministic, PSS, PublicKey, SecretKey, Sha384, Signature};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use postern_token::header::{Presentation, format_authorization, parse_authorization};
use postern_token::*;
use privacypass::{auth::authorize::parse_authorization_header, public_tokens::PublicToken};
use std::hint::black_box;
use std::sync::Arc;

struct Setup {
    pkcs8: Vec<u8>,
    signing: SigningKey,
    issuer: IssuerKey,
    challenge: ChallengeDigest,
    token: Token,
}

fn setup() -> Setup {
    let pkcs8 = SigningKey::generate_pkcs8().unwrap().to_vec();
    let signing = SigningKey::from_pkcs8(&pkcs8).unwrap();
    let issuer = IssuerKey::from_spki(signing.public_key()).unwrap();
    let challenge = TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example"])
        .unwrap()
        .digest();
    let (request, pending) = issuer.request(challenge).unwrap();
    let token = pending.finalize(&signing.sign(&request).unwrap()).unwrap();
    Setup { pkcs8, signing, issuer, challenge, token }
}

fn read(value: &str) -> Token {
    match parse_authorization(black_box(value.as_bytes())).unwrap() {
        Presentation::Token(token) => token,
        Presentation::OtherScheme => panic!("no token"),
    }
}

fn reading(criterion: &mut Criterion) {
    let setup = setup();
    let quoted = format_authorization(&setup.token);
    let chromium = format!("{quoted} extensions=\"AAAA\"");
    let bare = quoted.replace('"', "");
    let text = URL_SAFE.encode(setup.token.as_bytes());
    let key = Arc::new(VerifyingKey::from_spki(setup.signing.public_key()).unwrap());
    let keys = KeySet::new([TrustedKey::new(key, Window::ALWAYS)]);
    let header = http::HeaderValue::from_str(&bare).unwrap();

    let mut group = criterion.benchmark_group("read");
    group.bench_function("base64 decode alone", |bencher| {
        let mut buffer = [0; 400];
        bencher.iter(|| URL_SAFE.decode_slice(black_box(&text), &mut buffer).unwrap());
    });
    group.bench_function("header value to token", |bencher| bencher.iter(|| read(&quoted)));
    group
        .bench_function("header value to token, with extensions", |bencher| bencher.iter(|| read(&chromium)));
    group.bench_function("header value to checked token and spent key", |bencher| {
        bencher.iter(|| {
            let token = read(&quoted);
            assert!(token.challenge_digest() == setup.challenge);
            keys.find(token.token_key_id(), UnixSeconds(1)).unwrap();
            token.spent_key()
        });
    });
    group.bench_function("privacypass crate: header value to token", |bencher| {
        bencher.iter(|| -> PublicToken { parse_authorization_header(black_box(&header)).unwrap() });
    });
    group.finish();
}

fn verifying(criterion: &mut Criterion) {
    let setup = setup();
    let ours = VerifyingKey::from_spki(setup.signing.public_key()).unwrap();
    let theirs = PublicKey::<Sha384, PSS, Deterministic>::from_spki(setup.signing.public_key()).unwrap();
    let signature = Signature(setup.token.authenticator().to_vec());

    let mut group = criterion.benchmark_group("verify");
    group.bench_function("postern", |bencher| bencher.iter(|| ours.verify(black_box(&setup.token)).unwrap()));
    group.bench_function("blind-rsa-signatures", |bencher| {
        bencher.iter(|| theirs.verify(black_box(&signature), None, setup.token.signed_input()).unwrap());
    });
    group.finish();
}

fn issuing(criterion: &mut Criterion) {
    let setup = setup();
    let theirs = SecretKey::<Sha384, PSS, Deterministic>::from_der(&setup.pkcs8).unwrap();
    let (request, _) = setup.issuer.request(setup.challenge).unwrap();
    let begin = || {
        let (request, pending) = setup.issuer.request(setup.challenge).unwrap();
        (setup.signing.sign(&request).unwrap(), pending)
    };

    let mut group = criterion.benchmark_group("issue");
    group.bench_function("client: blind", |bencher| {
        bencher.iter(|| setup.issuer.request(setup.challenge).unwrap())
    });
    group.bench_function("issuer: sign", |bencher| {
        bencher.iter(|| setup.signing.sign(black_box(&request)).unwrap())
    });
    group.bench_function("issuer: blind-rsa-signatures", |bencher| {
        bencher.iter(|| theirs.blind_sign(BlindMessage(request.blinded_message().to_vec())).unwrap());
    });
    group.bench_function("client: finalize", |bencher| {
        bencher.iter_batched(
            begin,
            |(response, pending)| pending.finalize(&response).unwrap(),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// The types whose tokens are verified with the issuer's secret.
fn private(criterion: &mut Criterion) {
    const BATCH: usize = 100;
    for token_type in [TokenType::VoprfRistretto255, TokenType::VoprfP384] {
        let secret = SigningKey::generate(token_type).unwrap();
        let signing = SigningKey::from_secret(token_type, &secret).unwrap();
        let verifying = VerifyingKey::from_secret(token_type, &secret).unwrap();
        let issuer = IssuerKey::from_public_key(token_type, signing.public_key()).unwrap();
        let challenge = ChallengeDigest::of(b"a challenge");
        let (request, pending) = issuer.request(challenge).unwrap();
        let token = pending.finalize(&signing.sign(&request).unwrap()).unwrap();
        let (BatchRequest::Amortized(batch), _) = issuer.request_batch(challenge, BATCH).unwrap() else {
            panic!("a private type has amortized batches");
        };
        let begin = || {
            let (BatchRequest::Amortized(batch), pending) = issuer.request_batch(challenge, BATCH).unwrap()
            else {
                panic!("a private type has amortized batches");
            };
            (signing.sign_batch(&batch).unwrap().serialize(), pending)
        };

        let mut group = criterion.benchmark_group(format!("type {}", token_type.code()));
        group.sample_size(10);
        group.bench_function("verify", |bencher| {
            bencher.iter(|| verifying.verify(black_box(&token)).unwrap())
        });
        group.bench_function("issuer: sign one", |bencher| {
            bencher.iter(|| signing.sign(black_box(&request)).unwrap())
        });
        group.bench_function("issuer: sign a batch of 100", |bencher| {
            bencher.iter(|| signing.sign_batch(black_box(&batch)).unwrap());
        });
        group.bench_function("client: blind a batch of 100", |bencher| {
            bencher.iter(|| issuer.request_batch(challenge, BATCH).unwrap())
        });
        group.bench_function("client: finalize a batch of 100", |bencher| {
            bencher.iter_batched(
                begin,
                |(response, pending)| pending.finalize(&response).unwrap(),
                BatchSize::LargeInput,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, reading, verifying, issuing, private);
criterion_main!(benches);
