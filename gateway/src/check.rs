//! The second stage: the double-spend store's hint. A hit is a replay, refused before any cryptography is done; a miss
//! proves nothing.

use crate::deny::Refusal;
use crate::parse::Presented;
use postern_spend::{Seen, SpendStore, Store};

/// Refuses a token that the store remembers.
///
/// A store that gives no hint is asked again by the spend stage, whose verdict counts, so no hint refuses nobody.
pub(crate) async fn replay(store: &Store, presented: &Presented) -> Result<(), Refusal> {
    match store.seen(presented.spent_key(), presented.epoch()).await {
        Ok(Seen::Spent) => Err(Refusal::AlreadySpent),
        Ok(Seen::NotSeen) | Err(_) => Ok(()),
    }
}
