//! The keys that a gateway checks tokens against: one value, replaced whole when the issuer's directory
//! changes, so that a request sees one state from its first stage to its last.

use crate::config::Issuer;
use crate::keys::offer::Offer;
use crate::keys::secrets::Secrets;
use crate::observe::labels::KeyPhase;
use http::HeaderValue;
use postern_spend::{Binding, Epoch};
use postern_token::{
    Directory, DirectoryKey, KeyRefusal, KeySet, Mark, TokenKeyId, TokenType, TokenTypes, TrustedKey,
    UnixSeconds, VerifyingKey, Window,
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
    /// The type of each key that the directory lists and that cannot be used here, and when it comes into use.
    unusable: Vec<(TokenType, UnixSeconds)>,
}

/// Which keys of a directory are accepted, and what verifies their tokens.
pub(crate) struct Accepted {
    pub(crate) types: TokenTypes,
    pub(crate) secrets: Secrets,
    /// Why a key that the directory lists cannot be used, if there is one.
    pub(crate) passed_over: Option<String>,
}

impl Accepted {
    #[cfg(test)]
    pub(crate) fn public() -> Self {
        Self { types: TokenTypes::PUBLIC, secrets: Secrets::default(), passed_over: None }
    }

    /// Whether the secret of a private key is there.
    pub(crate) fn has_secret(&self, entry: &DirectoryKey) -> bool {
        entry.key_bytes().is_ok_and(|bytes| self.secrets.position(entry.token_type(), &bytes).is_some())
    }

    pub(crate) fn key(&mut self, entry: &DirectoryKey) -> Result<VerifyingKey, String> {
        let bytes = entry.key_bytes().map_err(|error| error.to_string())?;
        if entry.token_type().is_private() {
            return self.secrets.find(entry.token_type(), &bytes);
        }
        VerifyingKey::from_spki(&bytes).map_err(|error| error.to_string())
    }
}

/// The lifetimes of keys for which the directory has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    /// For a key without not-after.
    pub(crate) without_not_after: Duration,
    /// For a key that is no longer listed.
    pub(crate) removed: Duration,
}

impl Lifetimes {
    pub(crate) fn of(issuer: &Issuer) -> Self {
        Self { without_not_after: issuer.key_lifetime.get(), removed: issuer.removed_grace.get() }
    }
}

/// Why a directory gives no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyringError {
    #[error(
        "the directory lists no key of a token type that is accepted here (issuer.types); is it the right issuer's?"
    )]
    NoKeys,
    #[error(
        "the directory lists {0} keys of token types that are accepted here, but none of them can be used: {1}"
    )]
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
        Self { keys: KeySet::new(keys), ..Self::default() }
    }

    /// The keys of `directory` whose types are accepted, and those of `self` that it dropped, for as long as they are still
    /// good; none that it revokes. A key that cannot be used is passed over: one bad entry must not take the good ones with it.
    pub(crate) fn updated(
        &self,
        directory: &Directory,
        accepted: &mut Accepted,
        lifetimes: Lifetimes,
        now: UnixSeconds,
    ) -> Result<Self, KeyringError> {
        let mut fresh: Vec<TrustedKey> = Vec::new();
        let (mut listed, mut refused, mut unusable) = (0, None, Vec::new());
        for token_type in accepted.types.iter() {
            for entry in directory.keys_for(token_type) {
                listed += 1;
                match accepted.key(entry) {
                    Ok(key) => fresh.push(self.dated(key, entry.not_before, entry.not_after, lifetimes, now)),
                    Err(reason) => {
                        refused = Some(reason);
                        unusable.push((token_type, entry.not_before.unwrap_or_default()));
                    }
                }
            }
        }
        accepted.passed_over = refused;
        let revokes_known = self.keys.iter().any(|known| directory.revokes(known.key.id()));
        match &accepted.passed_over {
            // Whatever else is wrong with the directory: what it revokes must go.
            _ if revokes_known => {}
            _ if listed == 0 => return Err(KeyringError::NoKeys),
            Some(reason) if fresh.is_empty() => {
                return Err(KeyringError::AllUnusable(listed, reason.clone()));
            }
            _ => {}
        }
        let listed: Vec<TokenKeyId> = fresh.iter().map(|key| key.key.id()).collect();
        let left = self.keys.iter().filter(|known| !directory.revokes(known.key.id())).filter_map(|known| {
            let not_after = known.window.not_after.min(now.saturating_add(lifetimes.removed));
            let window = Window { not_after, ..known.window };
            (now < not_after).then(|| TrustedKey { window, ..known.clone() })
        });
        let fresh = fresh.into_iter().filter(|key| !directory.revokes(key.key.id()));
        let keys = KeySet::new(fresh.chain(left));
        let dropped = keys.iter().map(|key| key.key.id()).filter(|id| !listed.contains(id)).collect();
        Ok(Self { keys, dropped, unusable })
    }

    /// These keys without some of them, whose tokens are not taken any more.
    pub(crate) fn without(&self, lost: &[TokenKeyId]) -> Self {
        let kept = self.keys.iter().filter(|known| !lost.contains(&known.key.id()));
        Self {
            keys: KeySet::new(kept.cloned()),
            dropped: self.dropped.clone(),
            unusable: self.unusable.clone(),
        }
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

    /// The challenges for a client without a good token, one for each accepted type that there is a key of; `None` while there
    /// is no key at all. A type whose newest key cannot be used here is left to the others: the issuer signs with no older one.
    pub(crate) fn challenge(
        &self,
        offer: &Offer,
        binding: impl Fn(TokenKeyId) -> Binding,
        now: UnixSeconds,
    ) -> Option<HeaderValue> {
        let challenge = |token_type| {
            let (key, mark) = self.requested(token_type, &binding, now)?;
            // From then on the issuer signs with the next one, and soon no more with this one.
            let until = self.next_begins(token_type, now).fold(key.window.not_after, UnixSeconds::min);
            Some((self.is_superseded(key, now), offer.challenge(key, mark, now, until)))
        };
        let challenges: Vec<(bool, String)> = offer.types().iter().filter_map(challenge).collect();
        // With nothing better to offer, this key's tokens are still good.
        let is_all = challenges.iter().all(|(is_superseded, _)| *is_superseded);
        let offered = challenges.into_iter().filter(|(is_superseded, _)| is_all || !is_superseded);
        let offered: Vec<String> = offered.map(|(_, challenge)| challenge).collect();
        if offered.is_empty() { None } else { HeaderValue::from_str(&offered.join(", ")).ok() }
    }

    /// When listed keys of a type come into use after `now`, those that cannot be used here among them.
    fn next_begins(&self, token_type: TokenType, now: UnixSeconds) -> impl Iterator<Item = UnixSeconds> {
        let usable = self.listed(token_type).map(|known| known.window.not_before);
        let unusable =
            self.unusable.iter().filter(move |(of, _)| *of == token_type).map(|(_, begins)| *begins);
        usable.chain(unusable).filter(move |begins| *begins > now)
    }

    /// Whether a newer key of its type is in use that cannot be used here.
    fn is_superseded(&self, key: &TrustedKey, now: UnixSeconds) -> bool {
        let (token_type, since) = (key.key.token_type(), key.window.not_before);
        self.unusable.iter().any(|(of, begins)| *of == token_type && since < *begins && *begins <= now)
    }

    /// Whether challenges request tokens of any of these types.
    pub(crate) fn requests_any(
        &self,
        types: TokenTypes,
        binding: impl Fn(TokenKeyId) -> Binding,
        now: UnixSeconds,
    ) -> bool {
        types.iter().any(|token_type| self.requested(token_type, &binding, now).is_some())
    }

    /// The key of a type that clients are to get tokens of, and the mark that binds them: the newest in use that the issuer still
    /// lists, for it signs with no other, and whose binding is known. A key that was taken back may be the newer one. While
    /// none of those is bound, one that is no longer listed: its tokens are still good.
    pub(crate) fn requested(
        &self,
        token_type: TokenType,
        binding: impl Fn(TokenKeyId) -> Binding,
        now: UnixSeconds,
    ) -> Option<(&TrustedKey, Mark)> {
        let mark = |known: &TrustedKey| match binding(known.key.id()) {
            Binding::Unknown => None,
            Binding::Offered(mark) => Some(mark),
        };
        let bound = |known| Some((known, mark(known)?));
        let is_in_use = |known: &&TrustedKey| known.window.contains(now);
        let newest = self.listed(token_type).filter(is_in_use).find_map(bound);
        newest.or_else(|| self.of_type(token_type).filter(is_in_use).find_map(bound))
    }

    fn of_type(&self, token_type: TokenType) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter().filter(move |known| known.key.token_type() == token_type)
    }

    fn listed(&self, token_type: TokenType) -> impl Iterator<Item = &TrustedKey> {
        self.of_type(token_type).filter(|known| !self.dropped.contains(&known.key.id()))
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
        let any = |_| Binding::Offered(Mark::new([0; 16]));
        let newest = |of: &TrustedKey| self.requested(of.key.token_type(), any, now);
        let known = self.keys.iter().filter(|known| now < known.window.not_after);
        let view = |known: &TrustedKey| {
            let (id, Window { not_before, not_after }) = (known.key.id(), known.window);
            let phase = match newest(known).map(|(key, _)| key.key.id()) {
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
