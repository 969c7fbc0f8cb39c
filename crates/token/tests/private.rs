//! The private types and both batches: known answers, and the `privacypass` crate as the other party.

use crate::known::{hex, load, text};
use postern_token::*;
use privacypass::amortized_tokens::{self, AmortizedBatchTokenRequest, AmortizedBatchTokenResponse};
use privacypass::auth::authenticate::TokenChallenge as TheirChallenge;
use privacypass::common::private::{PrivateCipherSuite, deserialize_public_key};
use privacypass::common::store::PrivateKeyStore;
use privacypass::private_tokens::{self, Ristretto255, VoprfServer};
use privacypass::{Deserialize as _, Serialize as _};
use serde_json::Value;
use std::task::{Context, Poll, Waker};

const TYPES: [TokenType; 3] = [TokenType::VoprfP384, TokenType::BlindRsa2048, TokenType::VoprfRistretto255];

/// A test of each file, and how many vectors are in it: an empty file shall not pass.
macro_rules! vectors {
    ($check:ident: $($name:ident = $file:literal, $count:literal;)*) => {$(
        #[test]
        fn $name() {
            let vectors = load(include_str!(concat!("vectors/", $file)));
            assert_eq!(vectors.len(), $count);
            vectors.iter().for_each($check);
        }
    )*};
}

vectors! { issue_and_redeem:
    issuance_of_type_1_in_rust = "private_p384_rs.json", 5;
    issuance_of_type_1_in_go = "private_p384_go.json", 5;
    issuance_of_type_5_in_rust = "private_ristretto255_rs.json", 5;
    issuance_of_type_5_in_go = "private_ristretto255_go.json", 5;
}

vectors! { amortize_and_redeem:
    amortized_batches_of_type_1_in_rust = "amortized_p384_rs.json", 5;
    amortized_batches_of_type_1_in_go = "amortized_p384_go.json", 5;
    amortized_batches_of_type_5_in_rust = "amortized_ristretto255_rs.json", 5;
    amortized_batches_of_type_5_in_go = "amortized_ristretto255_go.json", 5;
}

vectors! { issue_each:
    generic_batches_in_rust = "generic_rs.json", 3;
    generic_batches_in_go = "generic_go.json", 5;
}

fn type_of(vector: &Value) -> TokenType {
    TokenType::from_code(u16::from_be_bytes(*hex(vector, "token_challenge").first_chunk().unwrap()))
}

/// The proof is random; the evaluated element before it is not.
fn issue_and_redeem(vector: &Value) {
    let (token_type, secret) = (type_of(vector), hex(vector, "skS"));
    let signing = SigningKey::from_secret(token_type, &secret).unwrap();
    assert_eq!(signing.public_key(), hex(vector, "pkS"));
    let bytes = hex(vector, "token_request");
    let request = TokenRequest::parse(&bytes).unwrap();
    assert_eq!((request.serialize(), request.token_type()), (bytes, token_type));
    let theirs = TokenResponse::parse(token_type, &hex(vector, "token_response")).unwrap();
    let ours = signing.sign(&request).unwrap();
    let element = request.blinded_message().len();
    assert_eq!(ours.as_bytes()[..element], theirs.as_bytes()[..element]);
    assert_eq!(ours.as_bytes().len(), theirs.as_bytes().len());
    redeem(&hex(vector, "token"), token_type, &secret);
}

fn amortize_and_redeem(vector: &Value) {
    let (token_type, secret) = (type_of(vector), hex(vector, "skS"));
    let signing = SigningKey::from_secret(token_type, &secret).unwrap();
    let bytes = hex(vector, "token_request");
    let request = AmortizedRequest::parse(&bytes).unwrap();
    let tokens = vector["tokens"].as_array().unwrap();
    assert_eq!((request.serialize(), request.count()), (bytes, tokens.len()));
    let theirs = hex(vector, "token_response");
    let read = AmortizedResponse::parse(token_type, &theirs).unwrap();
    assert_eq!(read.serialize(), theirs);
    let ours = signing.sign_batch(&request).unwrap().serialize();
    let proof = if token_type == TokenType::VoprfP384 { 96 } else { 64 };
    assert_eq!(ours[..ours.len() - proof], theirs[..theirs.len() - proof]);
    for token in tokens {
        redeem(&hex::decode(token.as_str().unwrap()).unwrap(), token_type, &secret);
    }
}

fn issue_each(vector: &Value) {
    let issuance = vector["issuance"].as_array().unwrap();
    let bytes = hex(vector, "token_request");
    let requests = parse_generic_request(&bytes).unwrap();
    assert_eq!((serialize_generic_request(&requests), requests.len()), (bytes, issuance.len()));
    let bytes = hex(vector, "token_response");
    let responses = parse_generic_response(&bytes).unwrap();
    assert_eq!((serialize_generic_response(&responses), responses.len()), (bytes, issuance.len()));
    for ((issued, request), response) in issuance.iter().zip(&requests).zip(&responses) {
        let token_type = type_of(issued);
        let secret = match token_type {
            TokenType::BlindRsa2048 => crate::vectors::pkcs8(&hex(issued, "skS")),
            _ => hex(issued, "skS"),
        };
        let ours = SigningKey::from_secret(token_type, &secret).unwrap().sign(request).unwrap();
        let (their_type, theirs) = response.as_ref().unwrap();
        assert_eq!((request.token_type(), *their_type), (token_type, token_type));
        let fixed = request.blinded_message().len(); // a whole signature of type 2, an element of the others
        assert_eq!(ours.as_bytes()[..fixed], theirs.as_bytes()[..fixed]);
        let token = Token::parse(&hex::decode(text(issued, "token")).unwrap()).unwrap();
        assert_eq!(token.challenge_digest(), ChallengeDigest::of(&hex(issued, "token_challenge")));
    }
}

fn redeem(bytes: &[u8], token_type: TokenType, secret: &[u8]) {
    let key = VerifyingKey::from_secret(token_type, secret).unwrap();
    let token = Token::parse(bytes).unwrap();
    assert_eq!((token.token_type(), token.token_key_id()), (token_type, key.id()));
    key.verify(&token).unwrap();
    let step = if token_type == TokenType::VoprfP384 { 17 } else { 1 }; // milliseconds each
    for at in (0..bytes.len()).step_by(step) {
        let mut other = bytes.to_vec();
        other[at] ^= 1;
        assert!(Token::parse(&other).is_err() || key.verify(&Token::parse(&other).unwrap()).is_err());
    }
}

fn keys(token_type: TokenType) -> (SigningKey, IssuerKey, Vec<u8>) {
    let secret = SigningKey::generate(token_type).unwrap();
    let signing = SigningKey::from_secret(token_type, &secret).unwrap();
    let issuer = IssuerKey::from_public_key(token_type, signing.public_key()).unwrap();
    assert_eq!((signing.id(), signing.token_type()), (issuer.id(), issuer.token_type()));
    (signing, issuer, secret.to_vec())
}

fn verifying(signing: &SigningKey, secret: &[u8]) -> VerifyingKey {
    match signing.token_type() {
        TokenType::BlindRsa2048 => VerifyingKey::from_spki(signing.public_key()).unwrap(),
        private => VerifyingKey::from_secret(private, secret).unwrap(),
    }
}

/// Returns the issuer's answer to a batch, with the requests at `refused` left out of a generic one.
fn answer(signing: &SigningKey, request: &[u8], refused: &[usize]) -> Vec<u8> {
    if let Ok(request) = AmortizedRequest::parse(request) {
        return signing.sign_batch(&request).unwrap().serialize();
    }
    let requests = parse_generic_request(request).unwrap();
    let responses = requests.iter().enumerate().map(|(index, request)| {
        let is_issued = !refused.contains(&index);
        is_issued.then(|| (request.token_type(), signing.sign(request).unwrap()))
    });
    serialize_generic_response(&responses.collect::<Vec<_>>())
}

#[test]
fn tokens_of_each_type_are_minted_alone_and_in_batches() {
    let challenge = ChallengeDigest::of(b"a challenge");
    for token_type in TYPES {
        let (signing, issuer, secret) = keys(token_type);
        let verifying = verifying(&signing, &secret);
        let (request, pending) = issuer.request(challenge).unwrap();
        let request = TokenRequest::parse(&request.serialize()).unwrap();
        verifying.verify(&pending.finalize(&signing.sign(&request).unwrap()).unwrap()).unwrap();

        for count in [1, 5] {
            let (request, pending) = issuer.request_batch(challenge, count).unwrap();
            let batch = pending.finalize(&answer(&signing, &request.serialize(), &[])).unwrap();
            assert_eq!((batch.tokens.len(), batch.not_issued, batch.bad), (count, 0, 0), "{token_type}");
            let mut nonces = Vec::new();
            for token in &batch.tokens {
                verifying.verify(token).unwrap();
                assert_eq!(token.challenge_digest(), challenge);
                nonces.push(token.nonce().0);
            }
            nonces.sort_unstable();
            nonces.dedup();
            assert_eq!(nonces.len(), count);
        }
    }
}

#[test]
fn an_answer_of_another_key_gives_no_token() {
    let challenge = ChallengeDigest::of(b"a challenge");
    let (signing, issuer, _) = keys(TokenType::VoprfRistretto255);
    // Another key with the same truncated id, so that it signs.
    let other = std::iter::repeat_with(|| keys(TokenType::VoprfRistretto255).0)
        .find(|other| other.id().truncated() == signing.id().truncated())
        .unwrap();
    let (request, pending) = issuer.request(challenge).unwrap();
    assert_eq!(pending.finalize(&other.sign(&request).unwrap()).unwrap_err(), BlindError::BadResponse);
    let (request, pending) = issuer.request_batch(challenge, 3).unwrap();
    let answer = answer(&other, &request.serialize(), &[]);
    assert_eq!(pending.finalize(&answer).unwrap_err(), BlindError::BadResponse);
}

#[test]
fn what_is_not_issued_in_a_generic_batch_costs_the_others_nothing() {
    let (signing, issuer, _) = keys(TokenType::BlindRsa2048);
    let (request, pending) = issuer.request_batch(ChallengeDigest::of(b"c"), 4).unwrap();
    let batch = pending.finalize(&answer(&signing, &request.serialize(), &[0, 2])).unwrap();
    assert_eq!((batch.tokens.len(), batch.not_issued, batch.bad), (2, 2, 0));

    // Two answers in each other's place are answers to something else.
    let (request, pending) = issuer.request_batch(ChallengeDigest::of(b"c"), 3).unwrap();
    let mut responses = parse_generic_response(&answer(&signing, &request.serialize(), &[])).unwrap();
    responses.swap(0, 1);
    let batch = pending.finalize(&serialize_generic_response(&responses)).unwrap();
    assert_eq!((batch.tokens.len(), batch.not_issued, batch.bad), (1, 0, 2));

    let (request, pending) = issuer.request_batch(ChallengeDigest::of(b"c"), 3).unwrap();
    let mut responses = parse_generic_response(&answer(&signing, &request.serialize(), &[])).unwrap();
    responses.pop();
    assert!(pending.finalize(&serialize_generic_response(&responses)).is_err());
}

#[test]
fn what_is_no_element_is_refused() {
    for (token_type, identity) in
        [(TokenType::VoprfRistretto255, vec![0; 32]), (TokenType::VoprfP384, vec![0; 49])]
    {
        let (signing, ..) = keys(token_type);
        let no_element = vec![0xff; identity.len()];
        for bad in [identity, no_element] {
            assert!(IssuerKey::from_public_key(token_type, &bad).is_err());
            let head = [&token_type.code().to_be_bytes()[..], &[signing.id().truncated()]].concat();
            let single = TokenRequest::parse(&[&head[..], &bad].concat()).unwrap();
            assert_eq!(signing.sign(&single).unwrap_err(), SignError::NotAnElement);
            let batch = [&head[..], &[u8::try_from(bad.len()).unwrap()], &bad].concat();
            let batch = AmortizedRequest::parse(&batch).unwrap();
            assert_eq!(signing.sign_batch(&batch).unwrap_err(), SignError::NotAnElement);
        }
        for secret in [vec![0; 48], vec![0; 32], vec![0xff; 48], vec![0xff; 32], vec![1; 31]] {
            assert!(SigningKey::from_secret(token_type, &secret).is_err());
            assert!(VerifyingKey::from_secret(token_type, &secret).is_err());
        }
    }
}

#[test]
fn batches_have_one_spelling() {
    let element = [7; 32];
    let head = [0, 5, 0xaa];
    let good = [&head[..], &[32], &element].concat();
    assert_eq!(AmortizedRequest::parse(&good).unwrap().count(), 1);
    let longer_length = [&head[..], &[0x40, 32], &element].concat();
    let empty = [&head[..], &[0]].concat();
    let part = [&head[..], &[31], &element[..31]].concat();
    let trailing = [&good[..], &[0]].concat();
    let endless = [&head[..], &[0xff; 8], &element].concat();
    let public = [&[0, 2, 0xaa, 32][..], &element].concat();
    for bad in [&longer_length, &empty, &part, &trailing, &endless, &public, &good[..good.len() - 1].to_vec()]
    {
        assert!(AmortizedRequest::parse(bad).is_err(), "{bad:?}");
    }
    assert!(parse_generic_request(&[0]).is_err() && parse_generic_request(&[]).is_err());
    assert!(parse_generic_request(&[1, 0]).is_err());
    assert!(parse_generic_response(&[1, 2]).is_err() && parse_generic_response(&[1, 0]).unwrap() == [None]);
}

/// Runs a future that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

struct OneKey<S: PrivateCipherSuite>(VoprfServer<S>);

#[async_trait::async_trait]
impl<S: PrivateCipherSuite> PrivateKeyStore for OneKey<S> {
    type CS = S;

    async fn insert(&self, _: u8, _: VoprfServer<S>) -> bool {
        false
    }

    async fn get(&self, _: &u8) -> Option<VoprfServer<S>> {
        Some(self.0.clone())
    }

    async fn remove(&self, _: &u8) -> bool {
        false
    }
}

fn agree<S: PrivateCipherSuite>(token_type: TokenType) {
    let (signing, issuer, secret) = keys(token_type);
    let verifying = verifying(&signing, &secret);
    let public = deserialize_public_key::<S>(signing.public_key()).unwrap();
    let challenge = TokenChallenge::new(token_type, "issuer.example", None, &["proxy.example"]).unwrap();
    let theirs = TheirChallenge::deserialize(&challenge.serialize()).unwrap();
    let redeem = |bytes: Vec<u8>| {
        let token = Token::parse(&bytes).unwrap();
        assert_eq!(token.challenge_digest(), challenge.digest());
        verifying.verify(&token).unwrap();
    };

    // Their client and our issuer.
    let (request, state) = private_tokens::TokenRequest::<S>::new(public, &theirs).unwrap();
    let ours = TokenRequest::parse(&request.tls_serialize_detached().unwrap()).unwrap();
    let response = signing.sign(&ours).unwrap();
    let response = private_tokens::TokenResponse::<S>::try_from_bytes(response.as_bytes()).unwrap();
    redeem(response.issue_token(&state).unwrap().tls_serialize_detached().unwrap());
    let (request, state) = AmortizedBatchTokenRequest::<S>::new(public, &theirs, 7).unwrap();
    let ours = AmortizedRequest::parse(&request.tls_serialize_detached().unwrap()).unwrap();
    let response = signing.sign_batch(&ours).unwrap().serialize();
    let response = AmortizedBatchTokenResponse::<S>::try_from_bytes(&response).unwrap();
    for token in response.issue_tokens(&state).unwrap() {
        redeem(token.tls_serialize_detached().unwrap());
    }

    // Our client and their issuer.
    let store = OneKey(VoprfServer::<S>::new_with_key(&secret).unwrap());
    let (request, pending) = issuer.request(challenge.digest()).unwrap();
    let request = private_tokens::TokenRequest::tls_deserialize(&mut request.serialize().as_slice()).unwrap();
    let server = private_tokens::server::Server::<S>::new();
    let response = ready(server.issue_token_response(&store, request)).unwrap();
    let response = TokenResponse::parse(token_type, &response.tls_serialize_detached().unwrap()).unwrap();
    redeem(pending.finalize(&response).unwrap().as_bytes().to_vec());
    let (request, pending) = issuer.request_batch(challenge.digest(), 7).unwrap();
    let request = AmortizedBatchTokenRequest::tls_deserialize(&mut request.serialize().as_slice()).unwrap();
    let server = amortized_tokens::server::Server::<S>::new();
    let response = ready(server.issue_token_response(&store, request)).unwrap();
    let batch = pending.finalize(&response.tls_serialize_detached().unwrap()).unwrap();
    assert_eq!(batch.tokens.len(), 7);
    batch.tokens.iter().for_each(|token| redeem(token.as_bytes().to_vec()));
}

#[test]
fn the_privacypass_crate_agrees_on_type_1() {
    agree::<p384::NistP384>(TokenType::VoprfP384);
}

#[test]
fn the_privacypass_crate_agrees_on_type_5() {
    agree::<Ristretto255>(TokenType::VoprfRistretto255);
}
