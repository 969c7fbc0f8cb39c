//! What the gateways' marks mean for their tokens: which are sent, and for which challenge tokens are signed.

use super::{Chosen, Endpoint, Gateways};
use crate::hop::gateway::Gateway;
use crate::hop::marks::saved::Ledger;
use crate::hop::marks::{Marks, MarksRefused, Trial};
use crate::wallet::challenge::CurrentChallenge;
use postern_daemon::utc::rough;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use std::sync::Arc;

impl Gateways {
    /// Tells whether the gateway takes tokens with this digest, by its last challenge or an older mark.
    pub(crate) fn asks_for(&self, chosen: &Chosen, digest: ChallengeDigest) -> bool {
        self.is_current(chosen, digest) || self.older(&chosen.endpoint).contains(&digest)
    }

    /// Tells whether this is the digest of the gateway's last challenge.
    pub(crate) fn is_current(&self, chosen: &Chosen, digest: ChallengeDigest) -> bool {
        offers(&chosen.endpoint.current.lock(), digest)
    }

    /// Accepts a gateway's challenge.
    ///
    /// # Errors
    /// A sentence: the challenge could tell clients apart.
    pub(super) fn take_in(&self, endpoint: &Endpoint, learned: CurrentChallenge) -> Result<(), String> {
        let mut ledger = self.marks.lock();
        let unknown = || Marks::default().with_longer_trials(rand::random());
        let marks = ledger.entry(ledger_name(&endpoint.gateway).to_owned()).or_insert_with(unknown);
        marks.offered(&learned, UnixSeconds::now())?;
        *endpoint.current.lock() = Some(Arc::new(learned));
        Ok(())
    }

    /// Records a token that paid for a tunnel.
    pub(crate) fn accepted(&self, chosen: &Chosen, digest: ChallengeDigest) {
        self.with_marks(&chosen.endpoint, |marks| marks.accepted(digest));
    }

    /// Records a refused token, and drops those that the gateway will not take any more.
    pub(crate) fn refused(&self, chosen: &Chosen, digest: ChallengeDigest) {
        if self.with_marks(&chosen.endpoint, |marks| marks.refused(digest)) {
            tracing::info!(
                "the gateway {} takes no more tokens of an older mark: the rest are dropped",
                chosen.gateway().url()
            );
            self.supply.give_up(digest);
            self.settle();
        }
    }

    /// Returns the earlier challenges whose tokens are still sent, oldest first.
    pub(super) fn older(&self, endpoint: &Endpoint) -> Vec<ChallengeDigest> {
        let mut older = self.with_marks(endpoint, |marks| marks.older());
        // Another gateway of the fleet may have a newer one.
        older.retain(|digest| !offers(&endpoint.current.lock(), *digest));
        older
    }

    /// Checks whether a token may be signed for `current`, as far as is known without the issuer.
    pub(crate) fn may_sign(&self, current: &CurrentChallenge) -> Result<(), MarksRefused> {
        if current.has_context {
            return Ok(()); // minted for on demand only
        }
        let Some(endpoint) = self.offering(current.digest) else { return Ok(()) };
        let url = endpoint.gateway.url();
        self.with_marks(&endpoint, |marks| {
            marks.may_sign(url, current.digest, current.key, UnixSeconds::now())
        })
    }

    /// Counts the challenge, if it is new, before a token is signed for it under `key`. False if no gateway has it any
    /// more.
    pub(crate) fn sign(&self, current: &CurrentChallenge, key: TokenKeyId) -> Result<bool, MarksRefused> {
        let Some(endpoint) = self.offering(current.digest) else { return Ok(false) };
        if current.has_context {
            return Ok(true);
        }
        let url = endpoint.gateway.url();
        let is_news =
            self.with_marks(&endpoint, |marks| marks.sign(url, current.digest, key, UnixSeconds::now()))?;
        if is_news {
            tracing::info!("tokens are minted for a challenge of the gateway {url} that is new here");
        }
        Ok(true)
    }

    /// Returns the trial that `current` is still on.
    pub(crate) fn trial(&self, current: &CurrentChallenge) -> Option<Trial> {
        let endpoint = self.offering(current.digest)?;
        self.with_marks(&endpoint, |marks| marks.trial(current.digest, UnixSeconds::now()))
    }

    /// Tells whether the challenge must be fetched once more before tokens are minted ahead for it.
    pub(crate) fn is_to_be_confirmed(&self, current: &CurrentChallenge) -> bool {
        self.offering(current.digest).is_some_and(|endpoint| {
            self.with_marks(&endpoint, |marks| marks.is_to_be_confirmed(current.digest, UnixSeconds::now()))
        })
    }

    /// Describes the state of a challenge.
    pub(crate) fn describe(&self, current: &CurrentChallenge) -> String {
        if let Err(refused) = self.may_sign(current) {
            return refused.to_string();
        }
        let bound =
            if current.is_marked { "bound to the gateway's records by a mark" } else { "without a mark" };
        match self.trial(current) {
            _ if current.has_context => {
                "another one for each request: tokens are minted when one is needed".to_owned()
            }
            Some(trial) => format!(
                "new, {bound}: each request waits for a token of its own until it has lasted for {} more",
                rough(trial.left.as_secs())
            ),
            None => format!("known, {bound}: tokens are minted ahead for it"),
        }
    }

    pub(crate) fn marks(&self) -> Ledger {
        self.marks.lock().clone()
    }

    /// Finds a gateway that has this challenge now.
    fn offering(&self, digest: ChallengeDigest) -> Option<Arc<Endpoint>> {
        self.list.load().iter().find(|endpoint| offers(&endpoint.current.lock(), digest)).cloned()
    }

    fn with_marks<T>(&self, endpoint: &Endpoint, look: impl FnOnce(&mut Marks) -> T) -> T {
        let name = ledger_name(&endpoint.gateway).to_owned();
        look(self.marks.lock().entry(name).or_default())
    }
}

fn offers(current: &Option<Arc<CurrentChallenge>>, digest: ChallengeDigest) -> bool {
    current.as_ref().is_some_and(|current| current.digest == digest)
}

/// Returns the key of a gateway's marks: gateways of one origin are one fleet.
fn ledger_name(gateway: &Gateway) -> &str {
    gateway.origin().unwrap_or_else(|| gateway.url())
}
