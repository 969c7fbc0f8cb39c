//! Turns for tokens that are dear to verify.

use crate::request::deny::Refusal;
use parking_lot::Mutex;
use postern_daemon::sources::Source;
use postern_daemon::turns::{Turn, Turns};
use postern_token::TokenType;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Verifications at once, each of which also waits for the store.
const AT_ONCE: usize = 16;
/// How much longer than a forged token took no dear one is verified: of a worker's time four fifths remain.
const REST: u32 = 4;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// The turns of one worker for tokens of type 1, of which a forged one costs as much as thirty of type 2. Sources take them one after the
/// other; good tokens go on without a rest.
pub(crate) struct Dear {
    turns: Turns,
    rests_until: Arc<Mutex<Instant>>,
}

impl Dear {
    pub(crate) fn new() -> Self {
        let rests_until = Arc::new(Mutex::new(Instant::now()));
        let rest = Arc::clone(&rests_until);
        let pace = move |now| match rest.lock().saturating_duration_since(now) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        };
        Self { turns: Turns::new(AT_ONCE, pace), rests_until }
    }

    /// Waits for a turn to verify a token, if it needs one.
    pub(crate) async fn turn(
        &self,
        token_type: TokenType,
        source: Option<Source>,
    ) -> Result<Option<Turn>, Refusal> {
        if !is_dear(token_type) {
            return Ok(None);
        }
        let turn = timeout(PATIENCE, self.turns.next(source)).await.ok().flatten();
        turn.map(Some).ok_or(Refusal::Crowded)
    }

    /// A forged token took this long.
    pub(super) fn rest(&self, token_type: TokenType, took: Duration) {
        if is_dear(token_type) {
            let until = &mut *self.rests_until.lock();
            *until = (*until).max(Instant::now()) + took * REST;
        }
    }
}

fn is_dear(token_type: TokenType) -> bool {
    token_type == TokenType::VoprfP384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_forged_token_none_that_is_dear_is_verified_for_a_while() {
        let (dear, took) = (Dear::new(), Duration::from_millis(100));
        let next = || timeout(Duration::from_millis(10), dear.turns.next(None));
        for _ in 0..3 * AT_ONCE {
            assert!(next().await.is_ok(), "good ones do not wait");
        }
        dear.rest(TokenType::BlindRsa2048, took);
        assert!(next().await.is_ok());
        dear.rest(TokenType::VoprfP384, took);
        assert!(next().await.is_err());
        let left = dear.rests_until.lock().saturating_duration_since(Instant::now());
        assert!(left > Duration::from_millis(200) && left <= REST * took, "{left:?}");
    }
}
