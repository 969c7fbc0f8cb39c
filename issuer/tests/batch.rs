//! Token types and batches over real HTTP (draft-ietf-privacypass-batched-tokens-09).

use crate::support::*;
use postern_issuer::Config;
use postern_token::*;
use std::path::Path;

const CHALLENGE: &[u8] = b"a challenge";
const PRIVATE: [TokenType; 2] = [TokenType::VoprfP384, TokenType::VoprfRistretto255];

/// An issuer of all types, for the account with the key "k-1".
fn all_types(directory: &Path, quota: &str) -> Config {
    let mut config = config(directory);
    config.keys.types = vec![5, 2, 1];
    declare(&config, &[account("one", "k-1", quota)]);
    config
}

async fn ask(issuer: &Running, request: &BatchRequest) -> Answer {
    let answer = issuer.exchange(&post_as(request.media_type(), &bearer("k-1"), &request.serialize())).await;
    if matches!(answer.status, 200 | 206) {
        assert_eq!(answer.field("content-type"), Some(request.response_media_type()));
    }
    answer
}

/// Verifies a token by the directory's key, or by the secret in the issuer's file.
async fn verify(issuer: &Running, directory: &Path, token: &Token) {
    let token_type = token.token_type();
    let key = if token_type.is_private() {
        let mut files = std::fs::read_dir(directory.join("keys")).unwrap().map(|entry| entry.unwrap().path());
        let file = files.find(|path| key_file::token_type(path) == Some(token_type)).unwrap();
        VerifyingKey::from_file(token_type, &std::fs::read(file).unwrap()).unwrap()
    } else {
        VerifyingKey::from_spki(issuer.key().await.public_key()).unwrap()
    };
    key.verify(token).unwrap();
}

#[tokio::test]
async fn tokens_of_each_type_alone_and_a_hundred_in_one_request() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(all_types(directory.path(), "1000/1d")).await;
    let listed: Vec<u16> = issuer.directory().await.token_keys.iter().map(|key| key.token_type).collect();
    assert_eq!(listed, [5, 2, 1]);
    assert_eq!(issuer.directory().await.batch_limit, Some(100));
    for token_type in TokenType::ISSUED {
        let key = issuer.key_of(token_type).await;
        let (request, pending) = key.request(ChallengeDigest::of(CHALLENGE)).unwrap();
        let answer = issuer.post(&bearer("k-1"), &request.serialize()).await;
        assert_eq!((answer.status, answer.field("content-type")), (200, Some(RESPONSE_MEDIA_TYPE)));
        let response = TokenResponse::parse(token_type, &answer.body).unwrap();
        verify(&issuer, directory.path(), &pending.finalize(&response).unwrap()).await;

        let count = if token_type == TokenType::VoprfP384 { 3 } else { 100 }; // it takes milliseconds each
        let (request, pending) = key.request_batch(ChallengeDigest::of(CHALLENGE), count).unwrap();
        let answer = ask(&issuer, &request).await;
        assert_eq!(answer.status, 200, "{token_type}");
        let batch = pending.finalize(&answer.body).unwrap();
        assert_eq!((batch.tokens.len(), batch.not_issued, batch.bad), (count, 0, 0));
        verify(&issuer, directory.path(), &batch.tokens[count - 1]).await;
    }
    issuer.stop().await;
}

#[tokio::test]
async fn a_generic_batch_is_issued_as_far_as_it_can_be() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(all_types(directory.path(), "1000/1d")).await;
    let challenge = ChallengeDigest::of(CHALLENGE);
    let mut requests = Vec::new();
    for token_type in [TokenType::BlindRsa2048, TokenType::VoprfRistretto255, TokenType::VoprfP384] {
        requests.push(issuer.key_of(token_type).await.request(challenge).unwrap().0);
    }
    let mut of_no_key = requests[1].clone();
    of_no_key.truncated_token_key_id = of_no_key.truncated_token_key_id.wrapping_add(1);
    let out_of_range = TokenRequest::new(issuer.key().await.id(), [0xff; 256]);
    let answer = ask(&issuer, &BatchRequest::Generic(requests.clone())).await;
    let types = |answer: &Answer| {
        let responses = parse_generic_response(&answer.body).unwrap();
        responses
            .iter()
            .map(|response| response.as_ref().map(|(of_type, _)| of_type.code()))
            .collect::<Vec<_>>()
    };
    assert_eq!((answer.status, types(&answer)), (200, vec![Some(2), Some(5), Some(1)]));

    requests.insert(1, of_no_key.clone());
    requests.insert(3, out_of_range.clone());
    let answer = ask(&issuer, &BatchRequest::Generic(requests)).await;
    assert_eq!((answer.status, types(&answer)), (206, vec![Some(2), None, Some(5), None, Some(1)]));

    let answer = ask(&issuer, &BatchRequest::Generic(vec![of_no_key, out_of_range])).await;
    assert_eq!(answer.status, 400);
    let text = answer.text();
    assert!(text.starts_with("None of the batch's tokens can be issued. The first: No key"), "{text}");
    issuer.stop().await;
}

#[tokio::test]
async fn a_quota_cuts_a_generic_batch_and_refuses_an_amortized_one() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(all_types(directory.path(), "5/1d")).await;
    let challenge = ChallengeDigest::of(CHALLENGE);
    let amortized = issuer.key_of(TokenType::VoprfRistretto255).await;
    let answer = ask(&issuer, &amortized.request_batch(challenge, 6).unwrap().0).await;
    assert_eq!(answer.status, 429);
    assert!(answer.text().starts_with("This account may have 5 tokens now"), "{}", answer.text());
    assert_eq!(ask(&issuer, &amortized.request_batch(challenge, 2).unwrap().0).await.status, 200);

    let (request, pending) = issuer.key().await.request_batch(challenge, 4).unwrap();
    let answer = ask(&issuer, &request).await;
    assert_eq!(answer.status, 206);
    let batch = pending.finalize(&answer.body).unwrap();
    assert_eq!((batch.tokens.len(), batch.not_issued), (3, 1));
    let answer = ask(&issuer, &issuer.key().await.request_batch(challenge, 4).unwrap().0).await;
    assert_eq!(answer.status, 429);
    assert!(answer.field("retry-after").is_some(), "{}", answer.head);
    issuer.stop().await;
}

#[tokio::test]
async fn what_is_too_large_no_element_or_of_no_type_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut limited = all_types(directory.path(), "1000/1d");
    limited.limits.batch = 4;
    limited.keys.types = vec![5, 2];
    let issuer = Running::start(limited).await;
    let challenge = ChallengeDigest::of(CHALLENGE);
    let key = issuer.key_of(TokenType::VoprfRistretto255).await;
    assert_eq!(ask(&issuer, &key.request_batch(challenge, 4).unwrap().0).await.status, 200);
    let answer = ask(&issuer, &key.request_batch(challenge, 5).unwrap().0).await;
    assert_eq!(answer.status, 422);
    assert!(answer.text().starts_with("This issuer gives 4 tokens in one request"), "{}", answer.text());
    let singles = (0..6).map(|_| key.request(challenge).unwrap().0).collect();
    let answer = ask(&issuer, &BatchRequest::Generic(singles)).await;
    let issued = parse_generic_response(&answer.body).unwrap();
    assert_eq!((answer.status, issued.iter().flatten().count()), (206, 4));
    assert!(issued[..4].iter().all(Option::is_some), "the first ones");
    let answer = ask(&issuer, &issuer.key().await.request_batch(challenge, 5).unwrap().0).await;
    assert_eq!(answer.status, 413, "it is longer than any batch of four");

    for token_type in PRIVATE {
        let len = if token_type == TokenType::VoprfP384 { 49 } else { 32 };
        for element in [vec![0; len], vec![0xff; len]] {
            let head = [0, u8::try_from(token_type.code()).unwrap(), key.id().truncated()];
            let body = [&head[..], &[u8::try_from(len).unwrap()], &element].concat();
            let answer = issuer.exchange(&post_as(AMORTIZED_REQUEST_MEDIA_TYPE, &bearer("k-1"), &body)).await;
            let expected = if token_type == TokenType::VoprfP384 {
                "This issuer issues no tokens of type 1"
            } else {
                "A blinded element is not"
            };
            assert_eq!(answer.status, 422);
            assert!(answer.text().starts_with(expected), "{}", answer.text());
        }
    }
    for (media_type, body) in [
        (AMORTIZED_REQUEST_MEDIA_TYPE, &[0, 2, 7, 0][..]),
        (AMORTIZED_REQUEST_MEDIA_TYPE, &[0, 5, 7, 0]),
        (GENERIC_REQUEST_MEDIA_TYPE, &[0]),
        (GENERIC_REQUEST_MEDIA_TYPE, &[3, 0, 9, 0]),
    ] {
        let answer = issuer.exchange(&post_as(media_type, &bearer("k-1"), body)).await;
        assert_eq!(answer.status, 422, "{body:?}");
        assert!(answer.text().starts_with("This is not the batch that"), "{}", answer.text());
    }
    issuer.stop().await;
}

/// Room for a batch is not a stranger's: the body is not read, and not waited for.
#[tokio::test]
async fn a_batch_of_no_account_is_refused_before_its_body_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let issuer = Running::start(all_types(directory.path(), "1000/1d")).await;
    for media_type in [AMORTIZED_REQUEST_MEDIA_TYPE, GENERIC_REQUEST_MEDIA_TYPE] {
        for (fields, length, expected) in
            [(String::new(), 20_000, 401), (bearer("k-2"), 20_000, 401), (bearer("k-1"), 26_000_000, 413)]
        {
            let fields = format!("content-type: {media_type}\r\ncontent-length: {length}\r\n{fields}");
            let answer = issuer.exchange(&request("POST", "/token-request", &fields, b"")).await;
            assert_eq!(answer.status, expected, "{media_type}");
        }
    }
    issuer.stop().await;
}

/// A request that is refused by its header costs no lookup of its API key.
#[tokio::test]
async fn an_ambiguous_batch_is_refused_before_the_authorizer_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config(directory.path());
    let url = format!("http://{}/authorize", authorizer.local_addr().unwrap());
    config.authorizer = serde_json::from_value(serde_json::json!({ "url": url, "timeout": "1s" })).unwrap();
    let issuer = Running::start(config).await;
    let fields =
        format!("content-type: {GENERIC_REQUEST_MEDIA_TYPE}\r\ncontent-length: 0\r\n{}", bearer("k-1"));
    let asked = || tokio::time::timeout(std::time::Duration::from_millis(50), authorizer.accept());
    let ambiguous = request("POST", "/token-request", &format!("host: another\r\n{fields}"), b"");
    assert_eq!(issuer.exchange(&ambiguous).await.status, 400);
    assert!(asked().await.is_err());
    let plain = request("POST", "/token-request", &fields, b"");
    assert_eq!(issuer.exchange(&plain).await.status, 503);
    assert!(asked().await.is_ok());
    issuer.stop().await;
}
