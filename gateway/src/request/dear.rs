//! Turns for tokens that are expensive to verify.

use crate::request::deny::Refusal;
use parking_lot::Mutex;
use postern_daemon::sources::Source;
use postern_daemon::turns::{Turn, Turns};
use postern_token::TokenType;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Maximum concurrent verifications, each of which also waits for the store.
const AT_ONCE: usize = 16;
/// Pause after a forged token, as a multiple of its verification time: four fifths of a worker's time remain.
const REST: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(5);

/// Turns of one worker for tokens of type 1, of which a forged one costs as much as thirty of type 2. Sources take turns one
/// after the other; good tokens cause no pause.
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

    /// Waits for a turn to verify a token. `None` if its type needs no turn.
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

    /// Extends the pause by the cost of a forged token whose verification took `took`.
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
