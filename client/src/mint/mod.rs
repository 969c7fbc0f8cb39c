//! Minting: the issuer's directory, and tokens signed blind (RFC 9578, section 6).
//!
//! The agent and `postern token mint` share this code. The issuer sees how many tokens are requested and by which account, and
//! never a token: it signs blinded messages.
//!
//! `refill` is the agent's task: `source` chooses the issuer, `consistency` approves its key, `tokens` requests signatures, and
//! `failure` sets the pause and the report after a failure.

pub mod compare;
pub(crate) mod consistency;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod issuer;
pub(crate) mod refill;
pub(crate) mod source;
pub(crate) mod tokens;

pub use error::MintError;
pub use issuer::{IssuerClient, MintKey};
