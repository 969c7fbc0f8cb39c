//! How tokens are bound to the memory that records them: by a mark in the challenge, which that memory alone knows.

use postern_token::{Mark, MarkId, TokenKeyId};
use std::fmt;
use std::sync::Arc;

/// How tokens are bound to the memory that records them.
#[derive(Clone)]
pub struct Marks {
    /// The id of a mark in tokens of a key: a digest of the challenge that carries it.
    pub id: Arc<dyn Fn(TokenKeyId, Mark) -> MarkId + Send + Sync>,
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks(…)")
    }
}

/// What binds the tokens of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Nothing yet: the store has not been read, the first mark is being planted, or every token of the present one is void. No
    /// token can be requested.
    Unknown,
    /// Tokens are requested for this mark.
    Offered(Mark),
}
