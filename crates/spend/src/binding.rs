//! How tokens are bound to the memory that records them: by a mark in the challenge, which that memory alone knows.

use postern_token::{Mark, MarkId, TokenKeyId};
use std::fmt;
use std::sync::Arc;

/// How tokens are bound to the memory that records them.
#[derive(Clone)]
pub struct Marks {
    /// The id of a mark in tokens of a key: a digest of the challenge that carries it.
    pub id: Arc<dyn Fn(TokenKeyId, Mark) -> MarkId + Send + Sync>,
    /// Whether keys that are new to the store begin with a mark. Otherwise marks that others began with are accepted.
    pub plants: bool,
}

/// Whether keys that are new to a store with these marks begin with one.
pub(crate) fn plants(marks: Option<&Marks>) -> bool {
    marks.is_some_and(|marks| marks.plants)
}

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").field("plants", &self.plants).finish_non_exhaustive()
    }
}

/// What binds the tokens of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// It is not known yet: the store has not been read, or the first mark is being planted. No token can be requested.
    Unknown,
    /// The key began without marks.
    Unmarked,
    /// Tokens are requested for this mark.
    Offered(Mark),
}
