//! A token held by one request. However the request ends, the token is returned to the wallet or counted.

use crate::recorder::{Fate, Recorder};
use crate::wallet::file::Wallet;
use crate::wallet::format::Unspent;
use postern_token::Token;
use std::sync::Arc;
use tokio::sync::watch;

/// A token that is off the disk and not sent yet. Returns to the wallet if dropped, and wakes the requests that wait for one.
pub(crate) struct ReservedToken {
    unspent: Unspent,
    wallet: Option<Arc<Wallet>>,
    recorder: Arc<Recorder>,
    progress: watch::Sender<u64>,
}

impl ReservedToken {
    pub(crate) fn new(
        unspent: Unspent,
        wallet: Arc<Wallet>,
        recorder: Arc<Recorder>,
        progress: watch::Sender<u64>,
    ) -> Self {
        Self { unspent, wallet: Some(wallet), recorder, progress }
    }

    pub(crate) fn token(&self) -> &Token {
        &self.unspent.token
    }

    /// Marks the token as sent: from here on it never returns to the wallet.
    pub(crate) fn send(mut self) -> SentToken {
        self.wallet = None;
        SentToken { token: self.unspent.token, recorder: Some(self.recorder.clone()) }
    }
}

impl Drop for ReservedToken {
    fn drop(&mut self) {
        let Some(wallet) = self.wallet.take() else { return };
        if let Err(error) = wallet.add(self.unspent) {
            self.recorder.fate(Fate::Unwritten, 1);
            tracing::warn!("a token that was not sent cannot go back into the wallet and is lost: {error}");
        }
        self.progress.send_modify(|count| *count += 1);
    }
}

/// A sent token. Counts as abandoned if dropped before the answer arrives.
pub(crate) struct SentToken {
    pub(crate) token: Token,
    recorder: Option<Arc<Recorder>>,
}

impl SentToken {
    /// Counts the token's fate, once.
    pub(crate) fn became(&mut self, fate: Fate) {
        if let Some(recorder) = self.recorder.take() {
            recorder.fate(fate, 1);
        }
    }
}

impl Drop for SentToken {
    fn drop(&mut self) {
        self.became(Fate::Abandoned);
    }
}
