//! The gateways' challenges, kept beside the wallet, so that an agent with tokens works from its first second.
//!
//! Two lines of text for each gateway: its address, and the challenge as it stands in `Proxy-Authenticate`, which
//! `postern token inspect` reads. A file with other contents is overwritten: it holds nothing of value.

use crate::wallet::beside::FileBeside;
use crate::wallet::challenge::CurrentChallenge;
use postern_token::header::{Challenge, Quoting};
use std::path::Path;
use std::sync::Arc;

/// The file and its contents.
pub(crate) struct SavedChallenges {
    file: FileBeside,
    saved: String,
}

impl SavedChallenges {
    /// Reads the file beside `wallet`.
    pub(crate) fn read(wallet: &Path) -> Self {
        let file = FileBeside::of(wallet, ".challenge");
        let saved = file.read().ok().flatten().unwrap_or_default();
        Self { file, saved }
    }

    /// The gateway's last known challenge.
    pub(crate) fn challenge(&self, gateway_url: &str) -> Option<CurrentChallenge> {
        let mut lines = self.saved.lines();
        while let (Some(first), Some(second)) = (lines.next(), lines.next()) {
            if first.strip_prefix("gateway ") == Some(gateway_url) {
                let challenge =
                    Challenge::parse_all(second.trim_end().as_bytes()).ok()?.into_iter().next()?;
                return CurrentChallenge::from_saved(challenge);
            }
        }
        None
    }

    /// Saves the challenges if they have changed. A failure only costs one request at the next start.
    pub(crate) async fn save(&mut self, challenges: &[(String, Arc<CurrentChallenge>)]) {
        // One with a context may be another each time. Those that differ in max-age alone are the same.
        let kept = challenges.iter().filter(|(_, current)| !current.has_context);
        let text: String = kept
            .map(|(url, current)| {
                let challenge = Challenge { max_age: None, ..current.challenge.clone() };
                format!("gateway {url}\n{}\n", challenge.format(Quoting::Quoted))
            })
            .collect();
        if text == self.saved || text.is_empty() {
            return;
        }
        if let Err(error) = self.file.write(&text).await {
            tracing::warn!(
                "cannot write {}: {error}; the next start must fetch the gateway's challenge before its first tunnel",
                self.file.path().display()
            );
        }
        self.saved = text; // do not retry a full disk on every call
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wallet::challenge::tests::challenge;

    #[tokio::test]
    async fn a_challenge_is_remembered_for_its_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let wallet = directory.path().join("wallet");
        let current = Arc::new(CurrentChallenge::new(challenge(Some(5))).unwrap());
        let mut saved = SavedChallenges::read(&wallet);
        assert!(saved.challenge("http://a").is_none());
        let both = [("http://a".to_owned(), current.clone()), ("http://b".to_owned(), current.clone())];
        saved.save(&both).await;
        for url in ["http://a", "http://b"] {
            let read = SavedChallenges::read(&wallet).challenge(url).unwrap();
            assert!(read.is_same_as(&current) && !read.is_fresh());
        }
        assert!(SavedChallenges::read(&wallet).challenge("http://c").is_none());
    }
}
