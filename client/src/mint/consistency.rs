//! Key consistency: the issuer must show this client the keys that it shows everyone, because a key made for one client marks
//! its tokens.
//!
//! ```text
//! a key to mint for -> listed with other times than before? -> refused
//!                   -> new, and there are mirrors? -> one at least lists it the same way, and none differs -> confirmed
//! ```
//!
//! The times of a key are fixed when the key is made, so rotations, restarts, retired keys and restored backups do not change the
//! times of a known key. A key that appears without having been published ahead is logged and not refused, because an emergency
//! rotation looks the same. The comparison with mirrors is that of draft-ietf-privacypass-consistency-mirror by plain GET.

use super::seen::{Seen, SeenFile, Times};
use crate::catalogue::{self, Position};
use crate::mint::issuer::{IssuerClient, Published};
use metrics::{Counter, counter};
use postern_telemetry::catalogue::from_zero;
use postern_token::{TokenKeyId, UnixSeconds};
use reqwest::Url;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;

/// Comparison of the issuer's keys with its earlier directories and with mirrors.
pub(crate) struct Consistency {
    file: SeenFile,
    seen: Seen,
    /// Keys that another mirror has confirmed stay confirmed.
    pub(crate) mirrors: Vec<IssuerClient>,
    refused: Counter,
}

/// The reason why no token is minted for a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Inconsistent {
    #[error(
        "the issuer's directory {url} lists the key {key} with other times than before, which never change: this client may be shown \
         something that others are not, so no token is minted for the key. Compare with others (postern token inspect \
         --compare), and ask the issuer's operator. If the change was meant, delete {} and restart the agent", file.display()
    )]
    Changed { url: Url, key: String, file: PathBuf },
    #[error(
        "the mirror {mirror} does not list the key {key} as the issuer's directory {url} does: the key may be made for this client alone, \
         to recognise its tokens, so none is minted for it. A mirror that is behind looks the same for as long as it is; if this \
         lasts, ask the issuer's operator"
    )]
    Differs { url: Url, key: String, mirror: Url },
    #[error(
        "no mirror of the issuer's directory answers, so whether others see the key {key}, too, is not known, and no token is minted for \
         it until one does: {reason}. Check issuer.consistency.mirrors"
    )]
    Unconfirmed { key: String, reason: String },
}

impl Inconsistent {
    /// Returns `true` if something differs, rather than being unknown.
    pub(crate) const fn is_difference(&self) -> bool {
        !matches!(self, Self::Unconfirmed { .. })
    }
}

impl Consistency {
    /// Reads the keys that earlier runs have seen, from the file next to `wallet`. Blocks on the disk.
    pub(crate) fn open(hop: Position, wallet: &Path, mirrors: Vec<IssuerClient>) -> Self {
        let (file, seen) = SeenFile::read(wallet);
        let refused = from_zero(counter!(catalogue::AGENT_KEYS_REFUSED, Position::LABEL => hop.as_str()));
        Self { file, seen, mirrors, refused }
    }

    /// Checks whether tokens may be minted for `key`, which `published` lists.
    pub(crate) async fn check(&mut self, published: &Published, key: TokenKeyId) -> Result<(), Inconsistent> {
        let (url, name) = (&published.url, key.short());
        let news = self.seen.look(url.as_str(), &published.directory, UnixSeconds::now());
        let checked = if news.changed.contains(&key) {
            let (url, file) = (url.clone(), self.file.file.path.clone());
            Err(Inconsistent::Changed { url, key: name, file })
        } else {
            self.confirm(published, key).await
        };
        if news.unannounced.contains(&key) {
            tracing::info!(
                "the issuer {url} uses a key that it did not publish ahead, {}, as after an emergency. To make sure that others see \
                 it, too: postern token inspect --compare",
                key.short()
            );
        }
        if checked.as_ref().is_err_and(Inconsistent::is_difference) {
            self.refused.increment(1);
        }
        self.file.save(&self.seen).await;
        checked
    }

    /// Compares a key that no mirror has confirmed yet with what the mirrors list.
    async fn confirm(&mut self, published: &Published, key: TokenKeyId) -> Result<(), Inconsistent> {
        if self.mirrors.is_empty() || self.seen.is_confirmed(key) {
            return Ok(());
        }
        let (url, name) = (published.url.clone(), key.short());
        let ours = Times::of(&published.directory, key);
        let asked = self.mirrors.iter().cloned();
        let mut asking: JoinSet<_> = asked.map(|mirror| async move { mirror.mirrored().await }).collect();
        let (mut confirmed, mut reasons) = (0, Vec::new());
        let mut differing = None;
        while let Some(answer) = asking.join_next().await {
            match answer {
                Ok(Ok(theirs)) if Times::of(&theirs.directory, key) == ours => confirmed += 1,
                Ok(Ok(theirs)) => differing = Some(theirs.url),
                Ok(Err(error)) => reasons.push(error.to_string()),
                Err(error) => reasons.push(error.to_string()), // a panic, which is in the log
            }
        }
        match differing {
            Some(mirror) => Err(Inconsistent::Differs { url, key: name, mirror }),
            None if confirmed == 0 => {
                Err(Inconsistent::Unconfirmed { key: name, reason: reasons.join("; ") })
            }
            None => {
                self.seen.confirm(key);
                Ok(())
            }
        }
    }
}
