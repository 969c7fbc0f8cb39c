//! The keys that tokens are checked against: an immutable value, replaced as a whole when the issuer's directory changes, so that
//! a request uses one state from its first stage to its last.

use crate::keys::offer::Offer;
use crate::keys::secrets::Accepted;
use crate::observe::labels::KeyPhase;
use http::HeaderValue;
use postern_spend::Epoch;
use postern_token::{
    Directory, KeyRefusal, KeySet, Mark, TokenKeyId, TokenType, TokenTypes, TrustedKey, UnixSeconds,
    VerifyingKey, Window,
};
use std::sync::Arc;
use std::time::Duration;

/// Lifetime of spent records beyond the end of their key; exceeds the clock differences between gateways and stores.
const RECORD_MARGIN: Duration = Duration::from_secs(3600);

/// Clock difference beyond which the store refuses: half the margin.
pub(crate) const CLOCK_TOLERANCE: Duration = Duration::from_secs(RECORD_MARGIN.as_secs() / 2);

#[derive(Default)]
pub(crate) struct Keyring {
    keys: KeySet,
    /// Keys that the directory no longer lists: their tokens are accepted for a grace period, but the issuer signs none with
    /// them.
    dropped: Vec<TokenKeyId>,
    /// Types and start times of listed keys that are unusable here.
    unusable: Vec<(TokenType, UnixSeconds)>,
}

/// Lifetimes of keys for which the directory has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    /// For a key without not-after.
    pub(crate) without_not_after: Duration,
    /// For a key that is no longer listed.
    pub(crate) removed: Duration,
}

/// The usability of all keys at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    Usable,
    None,
    /// All keys that have not retired come into use later, the first of them at `first`.
    Upcoming {
        known: usize,
        first: UnixSeconds,
    },
    /// All keys have retired, the last one at `last`.
    Retired {
        known: usize,
        last: UnixSeconds,
    },
}

impl Keyring {
    pub(crate) fn of(keys: Vec<TrustedKey>) -> Self {
        Self { keys: KeySet::new(keys), ..Self::default() }
    }

    /// Returns the accepted keys of `directory`, and those of `self` that it no longer lists until their grace period ends,
    /// without revoked keys. An unusable key is skipped, so that one bad entry does not invalidate the others. Fails with the
    /// reason to reject the directory.
    pub(crate) fn updated(
        &self,
        directory: &Directory,
        accepted: &mut Accepted,
        lifetimes: Lifetimes,
        now: UnixSeconds,
    ) -> Result<Self, String> {
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
            // Revocations apply even if the rest of the directory is unusable.
            _ if revokes_known => {}
            _ if listed == 0 => {
                return Err("the directory lists no key of a token type that is accepted here (issuer.types); is it the right \
                            issuer's?"
                    .to_owned());
            }
            Some(reason) if fresh.is_empty() => {
                return Err(format!(
                    "the directory lists {listed} keys of token types that are accepted here, but none of them can be used: {reason}"
                ));
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

    /// Returns the keyring without the keys `lost`, whose tokens are no longer accepted.
    pub(crate) fn without(&self, lost: &[TokenKeyId]) -> Self {
        let kept = self.keys.iter().filter(|known| !lost.contains(&known.key.id()));
        Self {
            keys: KeySet::new(kept.cloned()),
            dropped: self.dropped.clone(),
            unusable: self.unusable.clone(),
        }
    }

    /// Returns a key with its window. The directory's times take precedence. A key without times keeps the window it was first
    /// given; otherwise each poll would extend its window, which would never end.
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

    pub(crate) fn find(&self, id: TokenKeyId, now: UnixSeconds) -> Result<&TrustedKey, KeyRefusal> {
        self.keys.find(id, now)
    }

    /// Returns the challenges for a client without a valid token, one per accepted type that has a key; `None` without any key. A
    /// type whose newest key is unusable here is omitted if another type remains, because the issuer signs with no older key.
    pub(crate) fn challenge(
        &self,
        offer: &Offer,
        binding: impl Fn(TokenKeyId) -> Option<Mark>,
        now: UnixSeconds,
    ) -> Option<HeaderValue> {
        let challenge = |token_type| {
            let (key, mark) = self.requested(token_type, &binding, now)?;
            // From `until` on the issuer signs with the next key, and soon no longer with this one.
            let until = self.next_begins(token_type, now).fold(key.window.not_after, UnixSeconds::min);
            Some((self.is_superseded(key, now), offer.challenge(key, mark, now, until)))
        };
        let challenges: Vec<(bool, String)> = offer.types.iter().filter_map(challenge).collect();
        // Without an alternative a superseded key is offered: its tokens are still accepted.
        let is_all = challenges.iter().all(|(is_superseded, _)| *is_superseded);
        let offered = challenges.into_iter().filter(|(is_superseded, _)| is_all || !is_superseded);
        let offered: Vec<String> = offered.map(|(_, challenge)| challenge).collect();
        if offered.is_empty() { None } else { HeaderValue::from_str(&offered.join(", ")).ok() }
    }

    /// Returns the start times after `now` of the listed keys of a type, including unusable ones.
    fn next_begins(&self, token_type: TokenType, now: UnixSeconds) -> impl Iterator<Item = UnixSeconds> {
        let usable = self.listed(token_type).map(|known| known.window.not_before);
        let unusable =
            self.unusable.iter().filter(move |(of, _)| *of == token_type).map(|(_, begins)| *begins);
        usable.chain(unusable).filter(move |begins| *begins > now)
    }

    /// Returns `true` if a newer key of its type is in use but unusable here.
    fn is_superseded(&self, key: &TrustedKey, now: UnixSeconds) -> bool {
        let (token_type, since) = (key.key.token_type(), key.window.not_before);
        self.unusable.iter().any(|(of, begins)| *of == token_type && since < *begins && *begins <= now)
    }

    /// Returns `true` if challenges request tokens of any of these types.
    pub(crate) fn requests_any(
        &self,
        types: TokenTypes,
        binding: impl Fn(TokenKeyId) -> Option<Mark>,
        now: UnixSeconds,
    ) -> bool {
        types.iter().any(|token_type| self.requested(token_type, &binding, now).is_some())
    }

    /// Returns the key of a type that clients are to request tokens for, and the mark that binds those tokens: the newest key in
    /// use that is still listed and whose binding is known, because the issuer signs with no unlisted key. A withdrawn key may be
    /// newer. If no listed key is bound, returns a key that is no longer listed: its tokens are still accepted.
    pub(crate) fn requested(
        &self,
        token_type: TokenType,
        binding: impl Fn(TokenKeyId) -> Option<Mark>,
        now: UnixSeconds,
    ) -> Option<(&TrustedKey, Mark)> {
        let mark = |known: &TrustedKey| binding(known.key.id());
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

    /// Returns the next moment after `now` at which a key comes into use or retires.
    pub(crate) fn next_change(&self, now: UnixSeconds) -> Option<UnixSeconds> {
        let moments = self.keys.iter().flat_map(|known| [known.window.not_before, known.window.not_after]);
        moments.filter(|moment| *moment > now).min()
    }

    /// Returns all keys, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.keys.iter()
    }

    /// Returns the epochs of the keys that are valid at `now`.
    pub(crate) fn epochs(&self, now: UnixSeconds) -> impl Iterator<Item = Epoch> {
        self.keys.iter().filter(move |known| known.window.contains(now)).map(epoch)
    }

    /// Returns the epochs of all keys that have not retired at `now`, including upcoming ones.
    pub(crate) fn unretired(&self, now: UnixSeconds) -> impl Iterator<Item = Epoch> {
        self.keys.iter().filter(move |known| now < known.window.not_after).map(epoch)
    }

    pub(crate) fn is_usable(&self, now: UnixSeconds) -> bool {
        self.keys.newest(now).is_some()
    }

    /// Returns the number of known keys, including retired ones.
    pub(crate) fn len(&self) -> usize {
        self.keys.iter().count()
    }

    /// Describes each known key that has not retired, for the live page and metrics.
    pub(crate) fn view(&self, now: UnixSeconds) -> Vec<KeyView> {
        let any = |_| Some(Mark::new([0; 16]));
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

/// Public facts about a key, all of them from the issuer's directory.
pub(crate) struct KeyView {
    pub(crate) id: TokenKeyId,
    pub(crate) phase: KeyPhase,
    /// Time since the start of use; `None` if the directory has no `not-before`.
    pub(crate) age: Option<Duration>,
    pub(crate) retires: UnixSeconds,
}

/// Returns the epoch of a key's spent records. Its expiry derives from the directory's own not-after, so that gateways that
/// notice a removal at different times use the same expiry.
pub(crate) fn epoch(key: &TrustedKey) -> Epoch {
    Epoch { key: key.key.id(), expires: key.directory_not_after.saturating_add(RECORD_MARGIN), mark: None }
}

#[cfg(test)]
mod tests;
