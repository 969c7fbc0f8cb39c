//! `Token`: what is read is exactly what was given, its fields are its bytes, and only one verifies.

use postern_token::{Token, TokenInput, VerifyingKey, decode_base64url_vec};
use std::sync::LazyLock;

/// The one token in the corpus that this key signed (RFC 9578's first vector). Any other that verifies is forged.
const SIGNED: &[u8] = include_bytes!("corpus/token/type2");

/// The key of RFC 9577's examples, which is that of RFC 9578's first vector.
static KEY: LazyLock<VerifyingKey> = LazyLock::new(|| {
    let text = include_str!("rfc9577_token_key.txt");
    VerifyingKey::from_spki(&decode_base64url_vec(text.trim_end().as_bytes()).unwrap()).unwrap()
});

pub fn run(bytes: &[u8]) {
    if let Ok(token) = Token::parse(bytes) {
        assert_eq!(token.as_bytes(), bytes);
        let input = TokenInput::new(
            token.token_type(),
            token.nonce(),
            token.challenge_digest(),
            token.token_key_id(),
        );
        assert_eq!(input.as_bytes().as_slice(), token.signed_input());
        let joined = Token::assemble(&input, token.authenticator()).unwrap();
        assert_eq!(joined.as_bytes(), bytes);
        assert_eq!(joined.spent_key(), token.spent_key());
        assert_eq!(KEY.verify(&token).is_ok(), bytes == SIGNED);
        // With our key's id in it, so that the signature is looked at.
        let named = TokenInput::new(token.token_type(), token.nonce(), token.challenge_digest(), KEY.id());
        let named = Token::assemble(&named, token.authenticator()).unwrap();
        assert_eq!(KEY.verify(&named).is_ok(), named.as_bytes() == SIGNED);
    }
}
