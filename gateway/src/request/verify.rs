//! The third stage: the issuer's signature. Short enough to be done where it stands:
//! docs/decisions/verification.md.

use crate::request::dear::Dear;
use crate::request::deny::Refusal;
use crate::request::parse::Presented;
use std::time::Instant;

/// A presentation whose signature is right. Only this file makes one.
pub(crate) struct Verified(Presented);

impl Verified {
    /// Checks the signature over the token's exact bytes.
    pub(crate) fn verify(presented: Presented, dear: &Dear) -> Result<Self, Refusal> {
        let (token_type, began) = (presented.token().token_type(), Instant::now());
        if presented.key().verify(presented.token()).is_err() {
            dear.rest(token_type, began.elapsed());
            return Err(Refusal::BadSignature(token_type));
        }
        Ok(Self(presented))
    }

    pub(crate) fn presented(&self) -> &Presented {
        &self.0
    }

    pub(crate) fn into_presented(self) -> Presented {
        self.0
    }
}
