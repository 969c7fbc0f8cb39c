//! The gateways' marks applied to tokens: which are sent, and for which challenges more are signed.

use super::{Endpoint, Gateways};
use crate::hop::marks::saved::Ledger;
use crate::hop::marks::{Marks, MarksRefused, Trial};
use crate::wallet::challenge::CurrentChallenge;
use postern_daemon::utc::rough;
use postern_token::{ChallengeDigest, TokenKeyId, UnixSeconds};
use std::sync::Arc;

impl Gateways {
    /// Returns `true` if the gateway accepts tokens with this digest: that of its last challenge, or of an older mark.
    pub(crate) fn asks_for(&self, chosen: &Endpoint, digest: ChallengeDigest) -> bool {
        chosen.offers(digest) || self.older(chosen).contains(&digest)
    }

    /// Records a gateway's challenge.
    ///
    /// # Errors
    /// A sentence, if the challenge could tell clients apart.
    pub(super) fn take_in(&self, endpoint: &Endpoint, learned: Arc<CurrentChallenge>) -> Result<(), String> {
        let mut ledger = self.marks.lock();
        let unknown = || Marks::default().with_longer_trials(rand::random());
        let marks = ledger.entry(endpoint.gateway.ledger_name().to_owned()).or_insert_with(unknown);
        marks.offered(&learned, UnixSeconds::now())?;
        *endpoint.current.lock() = Some(learned);
        Ok(())
    }

    pub(crate) fn accepted(&self, chosen: &Endpoint, digest: ChallengeDigest) {
        self.with_marks(chosen, |marks| marks.accepted(digest));
    }

    /// Records a refused token. After consecutive refusals, drops the other tokens for the same challenge.
    pub(crate) fn refused(&self, chosen: &Endpoint, digest: ChallengeDigest) {
        if self.with_marks(chosen, |marks| marks.refused(digest)) {
            tracing::info!(
                "the gateway {} takes no more tokens of an older challenge: the rest are dropped",
                chosen.gateway.url()
            );
            self.supply.give_up(digest);
            self.settle();
        }
    }

    /// Returns the earlier challenges whose tokens are still sent, oldest first.
    pub(super) fn older(&self, endpoint: &Endpoint) -> Vec<ChallengeDigest> {
        let mut older = self.with_marks(endpoint, |marks| marks.older());
        // Another gateway of the fleet may have offered a newer challenge, so that this one counts as older.
        older.retain(|digest| !endpoint.offers(*digest));
        older
    }

    /// Checks whether a token may be signed for `current`, as far as is known without the issuer.
    pub(crate) fn may_sign(&self, current: &CurrentChallenge) -> Result<(), MarksRefused> {
        if current.has_context {
            return Ok(()); // minted for on demand only
        }
        let look = |marks: &mut Marks, url: &str| {
            marks.may_sign(url, current.digest, current.key, UnixSeconds::now())
        };
        self.offering(current, look).unwrap_or(Ok(()))
    }

    /// Counts the challenge, if new, before a token is signed for it under `key`. Returns `false` if no gateway offers it any
    /// more.
    pub(crate) fn sign(&self, current: &CurrentChallenge, key: TokenKeyId) -> Result<bool, MarksRefused> {
        let look = |marks: &mut Marks, url: &str| {
            if !current.has_context && marks.sign(url, current.digest, key, UnixSeconds::now())? {
                tracing::info!("tokens are minted for a challenge of the gateway {url} that is new here");
            }
            Ok(true)
        };
        self.offering(current, look).unwrap_or(Ok(false))
    }

    pub(crate) fn trial(&self, current: &CurrentChallenge) -> Option<Trial> {
        self.offering(current, |marks, _| marks.trial(current.digest, UnixSeconds::now())).flatten()
    }

    /// Returns `true` if the challenge must be fetched once more before tokens are minted ahead for it.
    pub(crate) fn is_to_be_confirmed(&self, current: &CurrentChallenge) -> bool {
        self.offering(current, |marks, _| marks.is_to_be_confirmed(current.digest, UnixSeconds::now()))
            .unwrap_or(false)
    }

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

    /// Looks at the marks and the URL of a gateway that has this challenge now.
    fn offering<T>(&self, current: &CurrentChallenge, look: impl FnOnce(&mut Marks, &str) -> T) -> Option<T> {
        let list = self.list.load();
        let endpoint = list.iter().find(|endpoint| endpoint.offers(current.digest))?;
        Some(self.with_marks(endpoint, |marks| look(marks, endpoint.gateway.url())))
    }

    pub(super) fn with_marks<T>(&self, endpoint: &Endpoint, look: impl FnOnce(&mut Marks) -> T) -> T {
        let name = endpoint.gateway.ledger_name().to_owned();
        look(self.marks.lock().entry(name).or_default())
    }
}

impl Endpoint {
    /// Returns `true` if this is the digest of the gateway's last challenge.
    pub(crate) fn offers(&self, digest: ChallengeDigest) -> bool {
        self.current.lock().as_ref().is_some_and(|current| current.digest == digest)
    }
}
