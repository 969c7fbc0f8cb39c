//! The third stage: the issuer's signature. Short enough to be done where it stands:
//! docs/decisions/verification.md.

use crate::request::deny::Refusal;
use crate::request::parse::Presented;

/// A presentation whose signature is right. Only this file makes one.
pub(crate) struct Verified(Presented);

impl Verified {
    /// Checks the signature over the token's exact bytes.
    pub(crate) fn verify(presented: Presented) -> Result<Self, Refusal> {
        presented.key().verify(presented.token()).map_err(|_| Refusal::BadSignature)?;
        Ok(Self(presented))
    }

    pub(crate) fn presented(&self) -> &Presented {
        &self.0
    }

    pub(crate) fn into_presented(self) -> Presented {
        self.0
    }
}
