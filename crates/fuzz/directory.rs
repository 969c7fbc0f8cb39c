//! The issuer's directory: what is read is written and read back, and its keys are read or refused.

use postern_token::{Directory, IssuerKey, TokenType, UnixSeconds, VerifyingKey};

pub fn run(json: &[u8]) {
    let Ok(directory) = Directory::parse(json) else { return };
    let written = directory.serialize();
    let read = Directory::parse(&written).unwrap();
    assert_eq!(read, directory);
    assert_eq!(read.serialize(), written);
    for now in [0, 1, 1_700_000_000, u64::MAX].map(UnixSeconds) {
        if let Some(key) = directory.preferred(TokenType::BlindRsa2048, now) {
            assert_eq!(key.token_type, TokenType::BlindRsa2048.code());
            assert!(key.not_before.is_none_or(|before| before <= now));
        }
    }
    for key in &directory.token_keys {
        if let Ok(bytes) = key.key_bytes() {
            // The blinding and the verifying code must accept the same keys.
            assert_eq!(IssuerKey::from_spki(&bytes).is_ok(), VerifyingKey::from_spki(&bytes).is_ok());
        }
    }
}
