//! `TokenChallenge`: what is read is written back the same, byte for byte.

use postern_token::{ChallengeDigest, TokenChallenge};

pub fn run(bytes: &[u8]) {
    if let Ok(challenge) = TokenChallenge::parse(bytes) {
        assert_eq!(challenge.serialize(), bytes);
        assert_eq!(challenge.digest(), ChallengeDigest::of(bytes));
        assert!(challenge.origin_info().iter().all(|origin| challenge.names_origin(origin)));
        // We write fewer names than we read.
        let origins: Vec<&str> = challenge.origin_info().iter().map(String::as_str).collect();
        let context = challenge.redemption_context().copied();
        if let Ok(ours) =
            TokenChallenge::new(challenge.token_type(), challenge.issuer_name(), context, &origins)
        {
            assert_eq!(ours, challenge);
        }
    }
}
