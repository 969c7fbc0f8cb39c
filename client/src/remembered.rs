//! The gateway's challenge, kept beside the wallet, so that an agent with tokens works from its first second.
//!
//! Two lines of text: the gateway's address, and the challenge as it stands in `Proxy-Authenticate`, which
//! `postern token inspect` reads. A file that says something else is written over: nothing in it is of value.

use crate::supply::Current;
use postern_service::files::write_private;
use postern_token::header::{Challenge, Quoting};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// The file, and what it holds.
pub(crate) struct Remembered {
    path: PathBuf,
    gateway_url: String,
    saved: Option<Challenge>,
}

impl Remembered {
    /// Reads the file beside `wallet`. A challenge of another gateway counts for nothing.
    pub(crate) fn read(wallet: &Path, gateway_url: &str) -> Self {
        let mut name = OsString::from(wallet);
        name.push(".challenge");
        let path = PathBuf::from(name);
        let saved = std::fs::read_to_string(&path).ok().and_then(|text| parse(&text, gateway_url));
        Self { path, gateway_url: gateway_url.to_owned(), saved }
    }

    /// The challenge of the last time.
    pub(crate) fn challenge(&self) -> Option<&Challenge> {
        self.saved.as_ref()
    }

    /// Writes the challenge down, unless it already is. A failure costs nothing but the first second of the next start.
    pub(crate) async fn save(&mut self, current: &Arc<Current>) {
        // One with a context may be another each time.
        if current.has_context || self.saved.as_ref() == Some(&current.challenge) {
            return;
        }
        let text = format!("gateway {}\n{}\n", self.gateway_url, current.challenge.format(Quoting::Quoted));
        let path = self.path.clone();
        match spawn_blocking(move || write_private(&path, text.as_bytes())).await {
            Ok(Ok(())) => self.saved = Some(current.challenge.clone()),
            Ok(Err(error)) => tracing::warn!("cannot write {}: {error}", self.path.display()),
            Err(error) => tracing::warn!("cannot write {}: {error}", self.path.display()),
        }
    }
}

fn parse(text: &str, gateway_url: &str) -> Option<Challenge> {
    let (first, second) = text.split_once('\n')?;
    if first.strip_prefix("gateway ") != Some(gateway_url) {
        return None;
    }
    Challenge::parse_all(second.trim_end().as_bytes()).ok()?.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{TokenChallenge, TokenType};

    #[tokio::test]
    async fn a_challenge_is_remembered_for_its_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let wallet = directory.path().join("wallet");
        let bytes =
            TokenChallenge::new(TokenType::BlindRsa2048, "issuer.example", None, &[]).unwrap().serialize();
        let challenge = Challenge { bytes, token_key: Some(vec![1; 342]), max_age: Some(5) };
        let mut remembered = Remembered::read(&wallet, "http://a");
        assert_eq!(remembered.challenge(), None);
        remembered.save(&Arc::new(Current::new(challenge.clone()).unwrap())).await;
        assert_eq!(Remembered::read(&wallet, "http://a").challenge(), Some(&challenge));
        assert_eq!(Remembered::read(&wallet, "http://b").challenge(), None);
    }
}
