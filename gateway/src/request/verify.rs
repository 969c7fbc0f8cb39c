//! Third stage: verifies the issuer's signature. It is short enough to run on the worker's thread:
//! docs/decisions/verification.md.

use crate::request::dear::Dear;
use crate::request::deny::Refusal;
use crate::request::parse::Presented;
use std::time::Instant;

/// A request whose token has a valid signature. Only this file can construct it.
pub(crate) struct Verified(Presented);

impl Verified {
    /// Checks the signature over the token's exact bytes.
    pub(crate) fn verify(presented: Presented, dear: &Dear) -> Result<Self, Refusal> {
        let (token_type, began) = (presented.token.token_type(), Instant::now());
        if presented.key.verify(&presented.token).is_err() {
            dear.rest(token_type, began.elapsed());
            return Err(Refusal::BadSignature(token_type));
        }
        Ok(Self(presented))
    }

    pub(crate) fn into_presented(self) -> Presented {
        self.0
    }
}
