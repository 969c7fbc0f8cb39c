//! From a header value to a token that could be verified: nothing is allocated.

use postern_token::header::{Presentation, parse_authorization};
use postern_token::*;
use std::hint::black_box;
use std::sync::Arc;

#[test]
fn nothing_is_allocated_from_a_header_value_to_a_spent_key() {
    let token = encode_base64url(&crate::known::token_bytes());
    let key = Arc::new(VerifyingKey::from_spki(&crate::known::spki()).unwrap());
    let keys = KeySet::new([TrustedKey::new(key, Window::ALWAYS)]);
    let challenge = Token::parse(&crate::known::token_bytes()).unwrap().challenge_digest();
    for value in [
        format!("PrivateToken token=\"{token}\""),
        format!("Basic Zm9v==, PrivateToken extensions=\"a\\\"b\" token={token}"),
    ] {
        let work = || {
            let Presentation::Token(token) = parse_authorization(black_box(value.as_bytes())).unwrap() else {
                panic!("no token")
            };
            assert!(token.challenge_digest() == challenge);
            keys.find(token.token_key_id(), UnixSeconds(1)).unwrap();
            black_box(token.spent_key());
        };
        work(); // the cryptographic library sets itself up once
        assert_eq!(allocation_counter::measure(work).count_total, 0, "{value}");
    }
    // The count counts.
    assert_eq!(allocation_counter::measure(|| drop(black_box(vec![1_u8]))).count_total, 1);
}

#[test]
fn a_refusal_allocates_nothing_either() {
    for value in
        ["", "Basic Zm9v==", "PrivateToken", "PrivateToken token=\"A+\"", "PrivateToken token=\"AAIA\""]
    {
        let work = || {
            assert!(!matches!(parse_authorization(black_box(value.as_bytes())), Ok(Presentation::Token(_))))
        };
        assert_eq!(allocation_counter::measure(work).count_total, 0, "{value}");
    }
}
