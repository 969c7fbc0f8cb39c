//! Fourth stage: spends the token, exactly once. Only the store's verdict admits a client's request.

use crate::keys::keyring::CLOCK_TOLERANCE;
use crate::observe::timeline::{Stage, Timeline};
use crate::request::deny::Refusal;
use crate::request::verify::Verified;
use postern_proxy::target::Target;
use postern_spend::{Epoch, Spend, SpendStore, Store, Unknown};
use postern_token::UnixSeconds;

/// The right to one tunnel to one target: a token that this request spent. Only this file can construct it, and no client's
/// tunnel opens without it.
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
        let presented = verified.into_presented();
        let log = &mut timeline.spend_log;
        let verdict = store.spend_with(&presented.spent_key, &presented.epoch, now, log).await;
        timeline.end(Stage::Spend);
        judge(verdict, &presented.epoch, UnixSeconds::now())?;
        Ok(Self { target: presented.into_target() })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}

/// Maps the store's verdict to an admission or a refusal. `now` is read after the verdict: otherwise a process that was
/// suspended between the token's arrival and its spend, or whose clock was set, would trust a record that expired before it was
/// written.
fn judge(verdict: Result<Spend, Unknown>, epoch: &Epoch, now: UnixSeconds) -> Result<(), Refusal> {
    match verdict {
        Ok(Spend::Admitted) if is_over(epoch, now) => Err(Refusal::StoreUnknown(Unknown::EpochRetired)),
        Ok(Spend::Admitted) => Ok(()),
        Ok(Spend::AlreadySpent) => Err(Refusal::AlreadySpent),
        Ok(Spend::Void) => Err(Refusal::Void),
        Err(unknown) => Err(Refusal::StoreUnknown(unknown)),
    }
}

/// Returns `true` if the epoch's records may have expired by the store's clock.
fn is_over(epoch: &Epoch, now: UnixSeconds) -> bool {
    now.saturating_add(CLOCK_TOLERANCE) >= epoch.expires
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::TokenKeyId;

    #[test]
    fn a_record_that_may_have_expired_when_it_was_written_admits_nothing() {
        let epoch = Epoch { key: TokenKeyId([1; 32]), expires: UnixSeconds(10_000), mark: None };
        let tolerance = CLOCK_TOLERANCE.as_secs();
        let admitted = |now| judge(Ok(Spend::Admitted), &epoch, UnixSeconds(now));
        assert!(admitted(10_000 - tolerance - 1).is_ok());
        for now in [10_000 - tolerance, 20_000] {
            assert!(matches!(admitted(now), Err(Refusal::StoreUnknown(Unknown::EpochRetired))), "at {now}");
        }
    }
}
