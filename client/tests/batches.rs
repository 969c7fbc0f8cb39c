//! Many tokens in one request, and what an agent makes of issuers that do not give them.

use crate::support::gateway::challenge;
use crate::support::issuer::Issuer;
use crate::support::*;
use postern_client::mint::{IssuerClient, MintError, MintKey};
use postern_token::header::Challenge;
use postern_token::{SigningKey, Token, TokenChallenge, TokenType, VerifyingKey};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Minting {
    issuer: Arc<Issuer>,
    client: IssuerClient,
    challenge: Vec<u8>,
}

impl Minting {
    async fn of(challenge: &TokenChallenge) -> Self {
        let issuer = Issuer::start().await;
        let client = IssuerClient::new(&issuer.url(), None, None).unwrap();
        Self { issuer, client, challenge: challenge.serialize() }
    }

    async fn key(&self) -> MintKey {
        let offered = Challenge { bytes: self.challenge.clone(), token_key: None, max_age: None };
        self.client.key_for(&offered).await.unwrap()
    }

    /// The tokens, and how many requests they took.
    async fn mint(&self, count: usize, urgent: usize) -> (Result<usize, MintError>, Vec<Token>, usize) {
        let (mut tokens, before) = (Vec::new(), self.issuer.requests.load(Ordering::SeqCst));
        let keep = |token| {
            tokens.push(token);
            ControlFlow::Continue(())
        };
        let minted = self.client.mint(&self.challenge, &self.key().await, count, urgent, keep).await;
        (minted, tokens, self.issuer.requests.load(Ordering::SeqCst) - before)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_tokens_take_one_request() {
    let minting = Minting::of(&challenge("proxy.example")).await;
    let verifying = VerifyingKey::from_spki(minting.issuer.key().public_key()).unwrap();
    for (count, urgent, expected) in
        [(100, 0, 1), (250, 0, 3), (101, 0, 2), (100, 3, 2), (1, 0, 1), (1, 1, 1), (9, 1, 2)]
    {
        let (minted, tokens, requests) = minting.mint(count, urgent).await;
        assert_eq!((minted.unwrap(), tokens.len(), requests), (count, count, expected), "{count} {urgent}");
        tokens.iter().for_each(|token| verifying.verify(token).unwrap());
    }
    *minting.issuer.batch_limit.lock() = Some(40);
    assert_eq!(minting.mint(100, 0).await.2, 3, "the directory says how many a batch may have");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_private_types_come_in_amortized_batches() {
    for token_type in [TokenType::VoprfRistretto255, TokenType::VoprfP384] {
        let challenge = TokenChallenge::new(token_type, "issuer.example", None, &["proxy.example"]).unwrap();
        let minting = Minting::of(&challenge).await;
        let secret = SigningKey::generate(token_type).unwrap();
        // The public key of before is not for this challenge.
        let signing = Arc::new(SigningKey::from_secret(token_type, &secret).unwrap());
        minting.issuer.keys.lock().push(signing);
        let count = if token_type == TokenType::VoprfP384 { 5 } else { 100 };
        let (minted, tokens, requests) = minting.mint(count, 0).await;
        assert_eq!((minted.unwrap(), requests), (count, 1));
        let verifying = VerifyingKey::from_secret(token_type, &secret).unwrap();
        for token in &tokens {
            assert_eq!(token.challenge_digest(), challenge.digest());
            verifying.verify(token).unwrap();
        }
        assert_eq!(minting.mint(1, 0).await.0.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_does_not_know_batches_is_asked_one_by_one_from_then_on() {
    for status in [400, 404, 405, 415, 501] {
        let minting = Minting::of(&challenge("proxy.example")).await;
        *minting.issuer.no_batches.lock() = Some(status);
        let (minted, tokens, requests) = minting.mint(10, 0).await;
        assert_eq!((minted.unwrap(), tokens.len(), requests), (10, 10, 11), "{status}");
        assert_eq!(minting.mint(10, 0).await.2, 10, "and no batch is tried again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_fails_at_one_batch_is_asked_for_the_next_one() {
    let minting = Minting::of(&challenge("proxy.example")).await;
    *minting.issuer.no_batches.lock() = Some(500);
    let (minted, _, requests) = minting.mint(10, 0).await;
    assert_eq!((minted.unwrap(), requests), (10, 11));
    *minting.issuer.no_batches.lock() = None;
    assert_eq!(minting.mint(10, 0).await.2, 1);
    // An answer that breaks off says nothing about batches.
    let breaks_off = serve(|mut stream| async move {
        let _ = stream.read(&mut [0; 65_536]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\nand no more").await;
    })
    .await;
    let own = std::mem::replace(&mut *minting.issuer.request_uri.lock(), format!("http://{breaks_off}/"));
    assert!(matches!(minting.mint(10, 0).await.0, Err(MintError::Unreachable { .. })));
    *minting.issuer.request_uri.lock() = own;
    assert_eq!(minting.mint(10, 0).await.2, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_too_large_is_tried_smaller_and_what_is_left_out_is_asked_for_again() {
    for status in [413, 422, 429] {
        let minting = Minting::of(&challenge("proxy.example")).await;
        *minting.issuer.no_batches.lock() = Some(status);
        let (minted, tokens, requests) = minting.mint(100, 0).await;
        assert_eq!((minted.unwrap(), tokens.len()), (100, 100), "{status}");
        assert!(requests < 110, "{requests}");
    }
    let minting = Minting::of(&challenge("proxy.example")).await;
    minting.issuer.batched_at_most.store(30, Ordering::SeqCst);
    let (minted, tokens, _) = minting.mint(60, 0).await;
    assert_eq!((minted.unwrap(), tokens.len()), (60, 60));
}

/// The reason is that of a token alone, and it is found in two requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_has_its_reason() {
    for (status, requests) in [(401, 1), (403, 1), (429, 2), (503, 1), (422, 2)] {
        let minting = Minting::of(&challenge("proxy.example")).await;
        minting.issuer.refuse(status, Some(7), "closed", usize::MAX);
        let (minted, tokens, _) = minting.mint(100, 0).await;
        let error = minted.unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
        assert_eq!((tokens.len(), error.retry_after().unwrap().as_secs()), (0, 7));
        assert_eq!(minting.issuer.refused.load(Ordering::SeqCst), requests, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_fills_its_wallet_in_one_request() {
    let world = World::with(|config| (config.wallet.low, config.wallet.high) = (50, 100)).await;
    assert_eq!(world.connect(&echo().await.to_string()).await.status, 200);
    world.until("the wallet is full", || world.unspent() >= 99).await;
    let requests = world.issuer.requests.load(Ordering::SeqCst);
    assert!(requests <= 3, "{requests}: one for the request that waited, and the rest at once");
}
