//! The tokens of one agent.

use super::token::Token;
use postern_token::{ChallengeDigest, UnixSeconds};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// As in the agent: clocks are cut to whole seconds, and a token needs time to reach its gateway.
const LAST_SECOND: Duration = Duration::from_secs(1);

/// Oldest first.
#[derive(Debug, Default)]
pub(crate) struct Wallet(VecDeque<(ChallengeDigest, Arc<Token>)>);

impl Wallet {
    pub(crate) fn add(&mut self, digest: ChallengeDigest, token: Arc<Token>) {
        self.0.push_back((digest, token));
    }

    /// The oldest token for a challenge.
    pub(crate) fn take(&mut self, digest: ChallengeDigest) -> Option<Arc<Token>> {
        let index = self.0.iter().position(|(known, _)| *known == digest)?;
        self.0.remove(index).map(|(_, token)| token)
    }

    pub(crate) fn level(&self, digest: ChallengeDigest) -> usize {
        self.0.iter().filter(|(known, _)| *known == digest).count()
    }

    /// Drops the tokens for a challenge.
    pub(crate) fn drop_challenge(&mut self, digest: ChallengeDigest) -> Vec<Arc<Token>> {
        self.drop_if(|known, _| known == digest)
    }

    /// Drops the tokens of keys that end.
    pub(crate) fn drop_retired(&mut self, now: UnixSeconds) -> Vec<Arc<Token>> {
        let now = now.saturating_add(LAST_SECOND);
        self.drop_if(|_, token| token.not_after <= now)
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Arc<Token>> {
        std::mem::take(&mut self.0).into_iter().map(|(_, token)| token)
    }

    fn drop_if(&mut self, drops: impl Fn(ChallengeDigest, &Token) -> bool) -> Vec<Arc<Token>> {
        let (dropped, kept) =
            std::mem::take(&mut self.0).into_iter().partition(|(digest, token)| drops(*digest, token));
        self.0 = kept;
        let dropped: VecDeque<(ChallengeDigest, Arc<Token>)> = dropped;
        dropped.into_iter().map(|(_, token)| token).collect()
    }
}
