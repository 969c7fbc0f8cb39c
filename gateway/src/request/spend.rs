//! The fourth stage: the token is spent, exactly once. The store's verdict is the only admission there is.

use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use crate::request::target::Target;
use crate::request::verify::Verified;
use postern_spend::{Spend, SpendStore, Store};
use postern_token::UnixSeconds;

/// The right to one tunnel to one target: a token that this very request spent. Only this file makes one, and a tunnel
/// cannot be opened without it.
pub(crate) struct Spent {
    target: Target,
}

impl Spent {
    /// Spends the token. If this future is dropped, the token may be spent without an admission: the client loses a
    /// token, which is the cheaper mistake.
    pub(crate) async fn spend(
        verified: Verified,
        store: &Store,
        now: UnixSeconds,
        timeline: &mut Timeline,
    ) -> Result<Self, Refusal> {
        let presented = verified.presented();
        let log = &mut timeline.spend_log;
        let verdict = store.spend_with(presented.spent_key(), presented.epoch(), now, log).await;
        timeline.end(Stage::Spend);
        match verdict {
            Ok(Spend::Admitted) => Ok(Self { target: verified.into_presented().into_target() }),
            Ok(Spend::AlreadySpent) => Err(Refusal::AlreadySpent),
            Err(unknown) => Err(Refusal::StoreUnknown(unknown)),
        }
    }

    /// Where the tunnel goes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}
