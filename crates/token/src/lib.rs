//! Privacy Pass on the wire and in the arithmetic: RFC 9577 (HTTP authentication) and RFC 9578 (issuance), type 2.

mod ids;
mod time;

pub use ids::{ChallengeDigest, Nonce, SpentKey, TokenKeyId, TokenType};
pub use time::UnixSeconds;
