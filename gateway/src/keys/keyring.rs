//! The keys that a gateway checks tokens against: one value, replaced whole when the issuer's directory
//! changes, so that a request sees one state from its first stage to its last.

use crate::keys::offer::Offer;
use crate::observe::labels::KeyPhase;
use http::HeaderValue;
use postern_spend::{Binding, Epoch};
use postern_token::{
    Directory, KeyRefusal, KeySet, Mark, TokenKeyId, TokenType, TrustedKey, UnixSeconds, VerifyingKey, Window,
};
use std::sync::Arc;
use std::time::Duration;

/// How long spent records outlive their key: more than the clocks of gateways and stores can differ.
const RECORD_MARGIN: Duration = Duration::from_secs(3600);

/// By how much those clocks may differ before the store refuses: half the margin.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(RECORD_MARGIN.as_secs() / 2);

/// The keys whose tokens are accepted.
#[derive(Default)]
pub(crate) struct Keyring {
    keys: KeySet,
    /// Those that the directory no longer lists: their tokens are good for a while, and the issuer signs none with
    /// them.
    dropped: Vec<TokenKeyId>,
}

/// The lifetimes of keys for which the directory has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    /// For a key without not-after.
    pub(crate) without_not_after: Duration,
    /// For a key that is no longer listed.
    pub(crate) removed: Duration,
}

/// Why a directory gives no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyringError {
    #[error(
        "the directory lists no key for token type 2 (blind RSA), the only type that is accepted here; is it \
         the right issuer's?"
    )]
    NoKeys,
    #[error("the directory lists {0} keys for token type 2, but none of them can be used: {1}")]
    AllUnusable(usize, String),
}

/// How things stand with the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// One is good now.
    Usable,
    /// None is known.
    None,
    /// The first comes into use later, and no other has not retired.
    Upcoming { known: usize, first: UnixSeconds },
    /// All have retired.
    Retired { known: usize, last: UnixSeconds },
}

impl Keyring {
    /// A ring of these.
    pub(crate) fn of(keys: Vec<TrustedKey>) -> Self {
        Self { keys: KeySet::new(keys), dropped: Vec::new() }
    }

    /// The keys of `directory`, and those of `self` that it dropped, for as long as they are still good. A key that
    /// cannot be read is passed over: one bad entry must not take the good ones with it.
    pub(crate) fn updated(
        &self,
        directory: &Directory,
        lifetimes: Lifetimes,
        now: UnixSeconds,
    ) -> Result<Self, KeyringError> {
        let mut fresh: Vec<TrustedKey> = Vec::new();
        let (mut listed, mut refused) = (0, None);
        for entry in directory.keys_for(TokenType::BlindRsa2048) {
            listed += 1;
            match entry
                .key_bytes()
                .map_err(|error| error.to_string())
                .and_then(|bytes| VerifyingKey::from_spki(&bytes).map_err(|error| error.to_string()))
            {
                Ok(key) => fresh.push(self.dated(key, entry.not_before, entry.not_after, lifetimes, now)),
                Err(reason) => refused = Some(reason),
            }
        }
        match (listed, refused) {
            (0, _) => return Err(KeyringError::NoKeys),
            (_, Some(reason)) if fresh.is_empty() => return Err(KeyringError::AllUnusable(listed, reason)),
            (_, Some(reason)) => {
                tracing::warn!(%reason, "one key of the issuer's directory cannot be used: its tokens are \
                    refused, those of the other keys are not")
            }
            (_, None) => {}
        }
        let listed: Vec<TokenKeyId> = fresh.iter().map(|key| key.key.id()).collect();
        let left = self.keys.iter().filter_map(|known| {
            let not_after = known.window.not_after.min(now.saturating_add(lifetimes.removed));
            let window = Window { not_after, ..known.window };
            (now < not_after).then(|| TrustedKey { window, ..known.clone() })
        });
        let keys = KeySet::new(fresh.into_iter().chain(left));
        let dropped = keys.iter().map(|key| key.key.id()).filter(|id| !listed.contains(id)).collect();
        Ok(Self { keys, dropped })
    }

    /// These keys without some of them, whose tokens are not taken any more.
    pub(crate) fn without(&self, lost: &[TokenKeyId]) -> Self {
        let kept = self.keys.iter().filter(|known| !lost.contains(&known.key.id()));
        Self { keys: KeySet::new(kept.cloned()), dropped: self.dropped.clone() }
    }

    /// A key with its window. The directory's times win. A key without times keeps the window it was first given;
    /// otherwise its window would move with every poll and never end.
    fn dated(
        &self,
        key: VerifyingKey,
        not_before: Option<UnixSeconds>,
        not_after: Option<UnixSeconds>,
        lifetimes: Lifetimes,
        now: UnixSeconds,
    ) -> TrustedKey {
        let known = self.keys.iter().find(|known| known.key.id() == key.id());
        let not_after = not_after
            .or(known.map(|known| known.directory_not_after))
            .unwrap_or_else(|| not_before.unwrap_or(now).saturating_add(lifetimes.without_not_after));
        let window = Window { not_before: not_before.unwrap_or_default(), not_after };
        TrustedKey::new(Arc::new(key), window)
    }

    /// The key of a token, if its tokens are good at `now`.
    pub(crate) fn find(&self, id: TokenKeyId, now: UnixSeconds) -> Result<&TrustedKey, KeyRefusal> {
        self.keys.find(id, now)
    }

    /// The challenge for a client without a good token; `None` while there is no key for it.
    pub(crate) fn challenge(
        &self,
        offer: &Offer,
        binding: impl Fn(TokenKeyId) -> Binding,
        now: UnixSeconds,
    ) -> Option<HeaderValue> {
        let (key, mark) = self.requested(binding, now)?;
        // From then on the issuer signs with the next one, and soon no more with this one.
        let successor = self.listed().map(|known| known.window.not_before).filter(|begins| *begins > now);
        let until = successor.fold(key.window.not_after, UnixSeconds::min);
        offer.header(key, mark, now, until)
    }

    /// The key that clients are to get tokens of, and the mark that binds them: the newest in use that the issuer still
    /// lists, for it signs with no other, and whose binding is known. A key that was taken back may be the newer one. While
    /// none of those is bound, one that is no longer listed: its tokens are still good.
    pub(crate) fn requested(
        &self,
        binding: impl Fn(TokenKeyId) -> Binding,
        now: UnixSeconds,
    ) -> Option<(&TrustedKey, Option<Mark>)> {
        let mark = |known: &TrustedKey| match binding(known.key.id()) {
            Binding::Unknown => None,
            Binding::Unmarked => Some(None),
            Binding::Offered(mark) => Some(Some(mark)),
        };
        let bound = |known| Some((known, mark(known)?));
        let newest = self.listed().filter(|known| known.window.contains(now)).find_map(bound);
        newest.or_else(|| self.keys.iter().filter(|known| known.window.contains(now)).find_map(bound))
    }

    fn listed(&self) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter().filter(|known| !self.dropped.contains(&known.key.id()))
    }

    /// How things stand with the keys at `now`.
    pub(crate) fn outlook(&self, now: UnixSeconds) -> Outlook {
        let known = self.len();
        let upcoming = self.keys.iter().map(|known| known.window).filter(|window| now < window.not_after);
        match (known, upcoming.map(|window| window.not_before).min()) {
            (0, _) => Outlook::None,
            (_, Some(first)) if first <= now => Outlook::Usable,
            (_, Some(first)) => Outlook::Upcoming { known, first },
            (_, None) => {
                let last = self.keys.iter().map(|known| known.window.not_after).max().unwrap_or_default();
                Outlook::Retired { known, last }
            }
        }
    }

    /// The next moment after `now` at which a key comes into use or retires.
    pub(crate) fn next_change(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let moments = self.keys.iter().flat_map(|known| [known.window.not_before, known.window.not_after]);
        moments.filter(|moment| *moment > now).min()
    }

    /// Every key, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter()
    }

    /// The epochs of the keys that are good at `now`.
    pub(crate) fn epochs(&self, now: UnixSeconds) -> impl Iterator<Item = Epoch> {
        self.keys.iter().filter(move |known| known.window.contains(now)).map(epoch)
    }

    /// The epochs of all keys that have not retired at `now`, those to come among them.
    pub(crate) fn unretired(&self, now: UnixSeconds) -> impl Iterator<Item = Epoch> {
        self.keys.iter().filter(move |known| now < known.window.not_after).map(epoch)
    }

    /// Whether any key is good at `now`.
    pub(crate) fn is_usable(&self, now: UnixSeconds) -> bool {
        self.keys.newest(now).is_some()
    }

    /// How many keys are known, retired ones among them.
    pub(crate) fn len(&self) -> usize {
        self.keys.iter().count()
    }

    /// Every key that is known and has not retired, for people and metrics.
    pub(crate) fn view(&self, now: UnixSeconds) -> Vec<KeyView> {
        let newest = self.requested(|_| Binding::Unmarked, now).map(|(key, _)| key.key.id());
        let known = self.keys.iter().filter(|known| now < known.window.not_after);
        let view = |known: &TrustedKey| {
            let (id, Window { not_before, not_after }) = (known.key.id(), known.window);
            let phase = match newest {
                _ if now < not_before => KeyPhase::Upcoming,
                Some(newest) if newest == id => KeyPhase::Newest,
                _ => KeyPhase::Older,
            };
            let age = (not_before != UnixSeconds::default()).then(|| not_before.until(now));
            KeyView { id, phase, age, retires: not_after }
        };
        known.map(view).collect()
    }
}

/// A key's public facts: all of them are in the issuer's directory.
pub(crate) struct KeyView {
    pub(crate) id: TokenKeyId,
    pub(crate) phase: KeyPhase,
    /// How long it has been in use, if the directory has a `not-before`.
    pub(crate) age: Option<Duration>,
    pub(crate) retires: UnixSeconds,
}

/// The epoch of a key's spent records. It ends by the directory's own not-after: gateways that notice at different times
/// that a key is no longer listed name one expiry.
pub(crate) fn epoch(key: &TrustedKey) -> Epoch {
    Epoch { key: key.key.id(), expires: key.directory_not_after.saturating_add(RECORD_MARGIN), mark: None }
}

#[cfg(test)]
mod tests;
