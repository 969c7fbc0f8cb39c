//! How many tokens to mint. Without I/O.

use crate::hop::marks::Trial;
use crate::wallet::supply::Demand;

/// What the wallet holds and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct Stock {
    /// Tokens for the present challenge.
    pub level: usize,
    /// Tokens of older marks.
    pub older: usize,
    /// Requests that wait for a token.
    pub waiting: usize,
    /// Minting ahead begins below this number of tokens.
    pub low: usize,
    /// Minting ahead ends at this number of tokens.
    pub high: usize,
}

impl Stock {
    /// What a wallet that is filled between `low` and `high` holds, and what is wanted of it.
    pub(crate) fn of(demand: &Demand, low: usize, high: usize) -> Self {
        Self { level: demand.level, older: demand.older, waiting: demand.waiting, low, high }
    }

    /// How many tokens to mint for the present challenge: for those who wait, and ahead where that may be done.
    #[must_use]
    pub fn to_mint(&self, trial: Option<Trial>, may_mint_ahead: bool) -> usize {
        let held = self.level + self.older;
        let ahead = match held {
            _ if !may_mint_ahead || trial.is_some() => 0,
            held if held < self.low || self.waiting > 0 => self.high,
            _ => 0,
        };
        // One token shows whether a new mark is good for anything.
        let now = if trial.is_some_and(|trial| !trial.is_proven) { 1 } else { usize::MAX };
        self.waiting.min(now).saturating_sub(self.level).max(ahead.saturating_sub(held))
    }

    /// Whether what is to be minted is for no request that waits, nor for one that soon would.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        let held = self.level + self.older;
        self.waiting == 0 && held > 0 && held >= self.low / 2
    }
}
