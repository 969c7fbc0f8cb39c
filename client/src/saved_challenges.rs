//! The gateways' challenges, kept beside the wallet, so that an agent with tokens works from its first second.
//!
//! Two lines of text for each gateway: its address, and the challenge as it stands in `Proxy-Authenticate`, which
//! `postern token inspect` reads. A file with other contents is overwritten: it holds nothing of value.

use crate::challenge::CurrentChallenge;
use postern_daemon::files::write_private;
use postern_token::header::{Challenge, Quoting};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// The file and its contents.
pub(crate) struct SavedChallenges {
    path: PathBuf,
    saved: String,
}

impl SavedChallenges {
    /// Reads the file beside `wallet`.
    pub(crate) fn read(wallet: &Path) -> Self {
        let mut name = OsString::from(wallet);
        name.push(".challenge");
        let path = PathBuf::from(name);
        let saved = std::fs::read_to_string(&path).unwrap_or_default();
        Self { path, saved }
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
        let (path, bytes) = (self.path.clone(), text.clone());
        let written = spawn_blocking(move || write_private(&path, bytes.as_bytes())).await;
        self.saved = text; // do not retry a full disk on every call
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    "cannot write {}: {error}; the next start must fetch the gateway's challenge before its first tunnel",
                    self.path.display()
                );
            }
            Err(error) => tracing::warn!("cannot write {}: {error}", self.path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::challenge::tests::challenge;

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
