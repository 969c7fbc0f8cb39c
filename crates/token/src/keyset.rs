//! The keys a verifier trusts, each for a time.

use crate::ids::TokenKeyId;
use crate::time::UnixSeconds;
use crate::verify::VerifyingKey;
use std::sync::Arc;

/// When a key's tokens are accepted: from `not_before` on, and no longer at `not_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first second in which the key is good.
    pub not_before: UnixSeconds,
    /// The first second in which it no longer is.
    pub not_after: UnixSeconds,
}

impl Window {
    /// From 1970 to the end of time.
    pub const ALWAYS: Self = Self { not_before: UnixSeconds(0), not_after: UnixSeconds::MAX };

    /// Whether `now` lies within.
    #[must_use]
    pub fn contains(&self, now: UnixSeconds) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// A key and its time.
#[derive(Clone, Debug)]
pub struct TrustedKey {
    /// The key.
    pub key: Arc<VerifyingKey>,
    /// When its tokens are accepted.
    pub window: Window,
    /// The end that the issuer's directory gave it: the first second in which no verifier accepts its tokens. `window`
    /// may end earlier at one verifier, which no longer finds the key listed; never later.
    pub directory_not_after: UnixSeconds,
}

impl TrustedKey {
    /// A key that is accepted for as long as its issuer lists it.
    #[must_use]
    pub fn new(key: Arc<VerifyingKey>, window: Window) -> Self {
        Self { key, window, directory_not_after: window.not_after }
    }
}

/// Why a token's key is not one of ours now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRefusal {
    /// The issuer never published it, or long ago.
    #[error("the token was issued under a key that this gateway does not know")]
    Unknown,
    /// Its time is over.
    #[error("the token was issued under a key that has been retired")]
    Retired,
    /// Its time has not come.
    #[error("the token was issued under a key that is not in use yet")]
    NotYet,
}

/// The keys of one issuer, newest first. Small (a handful), so looked up by walking.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<TrustedKey>,
}

impl KeySet {
    /// The set of `keys`; of two with one id, the first counts.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = TrustedKey>) -> Self {
        let mut unique: Vec<TrustedKey> = Vec::new();
        for trusted in keys {
            if unique.iter().all(|known| known.key.id() != trusted.key.id()) {
                unique.push(trusted);
            }
        }
        unique.sort_by_key(|trusted| std::cmp::Reverse(trusted.window.not_before));
        Self { keys: unique }
    }

    /// The key with this id, if its tokens are accepted at `now`.
    ///
    /// # Errors
    /// [`KeyRefusal`]: it is unknown, too old or too new.
    pub fn find(&self, id: TokenKeyId, now: UnixSeconds) -> Result<&TrustedKey, KeyRefusal> {
        let trusted = self.keys.iter().find(|trusted| trusted.key.id() == id).ok_or(KeyRefusal::Unknown)?;
        match trusted.window {
            window if now >= window.not_after => Err(KeyRefusal::Retired),
            window if now < window.not_before => Err(KeyRefusal::NotYet),
            _ => Ok(trusted),
        }
    }

    /// The key to mint tokens with: of those in use at `now`, the newest.
    #[must_use]
    pub fn newest(&self, now: UnixSeconds) -> Option<&TrustedKey> {
        self.keys.iter().find(|trusted| trusted.window.contains(now))
    }

    /// All keys, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter()
    }

    /// Whether there is no key at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
