//! A token's life, and what is refused along the way.

use postern_token::header::{Challenge, Presentation, format_authorization, parse_authorization};
use postern_token::*;

fn key() -> SigningKey {
    SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap()
}

fn challenge() -> TokenChallenge {
    TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &["proxy.example"]).unwrap()
}

#[test]
fn a_token_is_requested_signed_finalized_presented_and_verified() {
    let signing = key();
    let offered = Challenge {
        bytes: challenge().serialize(),
        token_key: Some(signing.public_key().to_vec()),
        max_age: Some(60),
    };
    let value = offered.format();
    let read = Challenge::parse_all(value.as_bytes()).unwrap();
    assert_eq!(read, [offered]);

    let issuer = IssuerKey::from_spki(read[0].token_key.as_ref().unwrap()).unwrap();
    let (request, pending) = issuer.request(ChallengeDigest::of(&read[0].bytes)).unwrap();
    let request = TokenRequest::parse(&request.serialize()).unwrap();
    let token = pending.finalize(&signing.sign(&request).unwrap()).unwrap();

    let value = format_authorization(&token);
    assert_eq!(value.len(), "PrivateToken token=\"\"".len() + 472);
    let Presentation::Token(read) = parse_authorization(value.as_bytes()).unwrap() else {
        panic!("no token")
    };
    assert_eq!(read.as_bytes(), token.as_bytes());
    assert_eq!(read.challenge_digest(), challenge().digest());
    VerifyingKey::from_spki(signing.public_key()).unwrap().verify(&read).unwrap();
    assert_eq!(VerifyingKey::from_spki(key().public_key()).unwrap().verify(&read), Err(BadSignature));
}
