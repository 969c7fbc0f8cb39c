//! What attackers know: every token that was presented, and which of them were admitted.

use super::token::Token;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct WireTap {
    sent: Mutex<Vec<Arc<Token>>>,
    admitted: Mutex<Vec<Arc<Token>>>,
}

impl WireTap {
    pub(crate) fn sent(&self, token: &Arc<Token>) {
        self.sent.lock().push(Arc::clone(token));
    }

    pub(crate) fn admitted(&self, token: &Arc<Token>) {
        self.admitted.lock().push(Arc::clone(token));
    }

    /// None was presented yet.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.lock().is_empty()
    }

    /// One of the tokens that were presented.
    pub(crate) fn any(&self, index: impl FnOnce(usize) -> usize) -> Option<Arc<Token>> {
        pick(&self.sent.lock(), index)
    }

    /// One of those that were admitted.
    pub(crate) fn any_admitted(&self, index: impl FnOnce(usize) -> usize) -> Option<Arc<Token>> {
        pick(&self.admitted.lock(), index)
    }

    pub(crate) fn count_admitted(&self) -> usize {
        self.admitted.lock().len()
    }
}

fn pick(tokens: &[Arc<Token>], index: impl FnOnce(usize) -> usize) -> Option<Arc<Token>> {
    if tokens.is_empty() { None } else { tokens.get(index(tokens.len())).cloned() }
}
