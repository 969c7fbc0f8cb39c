//! The published directory: its contents, their order, and the time that it may be cached.

use crate::config::Config;
use crate::keys::{self, TokenKey};
use crate::representation::Representation;
use crate::rotation::{self, Phase, Schedule};
use postern_token::{Directory, DirectoryKey, TokenType, UnixSeconds};
use std::cmp::Reverse;
use std::time::Duration;

/// The contents of the directory in addition to the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Imprint {
    pub(crate) request_uri: String,
    pub(crate) batch_limit: u32,
}

impl Imprint {
    pub(crate) fn of(config: &Config) -> Self {
        Self { request_uri: config.directory.issuer_request_uri.clone(), batch_limit: config.limits.batch }
    }
}

/// The directory as served until `changes_at`.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) representation: Representation,
    /// `true` if it lists no key.
    pub(crate) is_empty: bool,
    /// The time from which another directory may be served.
    pub(crate) changes_at: UnixSeconds,
}

impl Document {
    /// Creates the directory of `keys` at `now`. `revoked` are the ids of keys whose tokens are void.
    pub(crate) fn of(
        keys: &[TokenKey],
        revoked: Vec<String>,
        schedule: &Schedule,
        imprint: &Imprint,
        now: UnixSeconds,
    ) -> Self {
        let types = types_in_order(keys, schedule);
        let listed = Directory {
            issuer_request_uri: imprint.request_uri.clone(),
            token_keys: types.iter().flat_map(|of_type| in_order(keys, *of_type, now)).map(entry).collect(),
            batch_limit: Some(imprint.batch_limit),
            revoked,
        };
        let next = |token_type| rotation::next_change(&keys::lives(keys, token_type), schedule, now);
        let changes_at = types.into_iter().map(next).min().unwrap_or(UnixSeconds::MAX);
        let is_empty = listed.token_keys.is_empty();
        Self { representation: Representation::of(listed.serialize()), is_empty, changes_at }
    }

    /// Returns the time that a copy made at `now` may be cached.
    pub(crate) fn max_age(&self, limit: Duration, now: UnixSeconds) -> Duration {
        limit.min(now.until(self.changes_at))
    }
}

/// Returns the issued types by preference, then other types that still have keys.
fn types_in_order(keys: &[TokenKey], schedule: &Schedule) -> Vec<TokenType> {
    let mut types: Vec<TokenType> = schedule.types.iter().collect();
    for key in keys {
        if !types.contains(&key.signing.token_type()) {
            types.push(key.signing.token_type());
        }
    }
    types
}

/// Returns the keys of one type: first the current one, for clients that read only the first; then upcoming ones, the
/// nearest first; then those that sign no more, the newest first.
fn in_order(keys: &[TokenKey], token_type: TokenType, now: UnixSeconds) -> Vec<&TokenKey> {
    let of_type =
        |key: &&TokenKey| key.signing.token_type() == token_type && key.life.phase(now) != Phase::Over;
    let current = rotation::current(&keys::lives(keys, token_type), now);
    let mut keys: Vec<_> = keys.iter().filter(of_type).collect();
    keys.sort_by_key(|key| {
        let start = key.life.not_before;
        let (is_current, is_past) = (Some(key.life) == current, start <= now);
        (!is_current, is_past, if is_past { 0 } else { start.0 }, Reverse(start))
    });
    keys
}

fn entry(key: &TokenKey) -> DirectoryKey {
    let TokenKey { signing, life } = key;
    DirectoryKey::new(signing.token_type(), signing.public_key(), Some(life.not_before), Some(life.not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rotation::Lifetime;
    use postern_token::{SigningKey, TokenTypes};
    use std::sync::Arc;

    fn key(not_before: u64) -> TokenKey {
        key_of(TokenType::BlindRsa2048, not_before)
    }

    fn key_of(token_type: TokenType, not_before: u64) -> TokenKey {
        let secret = SigningKey::generate(token_type).unwrap();
        let signing = SigningKey::from_secret(token_type, &secret).unwrap();
        TokenKey {
            signing: Arc::new(signing),
            life: Lifetime::starting(UnixSeconds(not_before), &Schedule::TEST),
        }
    }

    fn document(keys: &[TokenKey], now: u64) -> Document {
        let imprint = Imprint { request_uri: "/token-request".to_owned(), batch_limit: 100 };
        Document::of(keys, Vec::new(), &Schedule::TEST, &imprint, UnixSeconds(now))
    }

    fn starts(document: &Document) -> Vec<u64> {
        let directory = Directory::parse(&document.representation.body).unwrap();
        directory.token_keys.iter().map(|key| key.not_before.unwrap().0).collect()
    }

    #[test]
    fn the_key_to_use_comes_first_and_the_rule_of_the_rfc_finds_it_too() {
        let keys = [key(30_000), key(0), key(60_000)];
        let order = [
            (29_999, vec![0, 30_000, 60_000]),
            (30_000, vec![30_000, 60_000, 0]),
            (36_999, vec![30_000, 60_000, 0]),
            (37_000, vec![30_000, 60_000]),
            (60_000, vec![60_000, 30_000]),
        ];
        for (now, expected) in order {
            let document = document(&keys, now);
            assert_eq!(starts(&document), expected, "at {now}");
            let directory = Directory::parse(&document.representation.body).unwrap();
            let preferred = directory.preferred(TokenType::BlindRsa2048, UnixSeconds(now)).unwrap();
            assert_eq!(preferred.not_before.unwrap().0, expected[0]);
        }
    }

    #[test]
    fn each_type_has_its_own_turns_and_types_come_by_preference() {
        let types = TokenTypes::new(&[5, 2]).unwrap();
        let keys = [
            key_of(TokenType::VoprfP384, 0), // of an earlier configuration
            key_of(TokenType::BlindRsa2048, 10_000),
            key_of(TokenType::BlindRsa2048, 40_000),
            key_of(TokenType::VoprfRistretto255, 0),
        ];
        let imprint = Imprint { request_uri: "/token-request".to_owned(), batch_limit: 7 };
        let document = Document::of(
            &keys,
            Vec::new(),
            &Schedule { types, ..Schedule::TEST },
            &imprint,
            UnixSeconds(20_000),
        );
        let directory = Directory::parse(&document.representation.body).unwrap();
        let listed: Vec<_> =
            directory.token_keys.iter().map(|key| (key.token_type, key.not_before.unwrap().0)).collect();
        assert_eq!(listed, [(5, 0), (2, 10_000), (2, 40_000), (1, 0)]);
        assert_eq!(directory.batch_limit, Some(7));
        assert_eq!(document.changes_at, UnixSeconds(29_000), "the successor of the key of type 5 is due");
    }

    #[test]
    fn the_etag_changes_with_the_directory_and_only_with_it() {
        let keys = [key(0), key(30_000)];
        let before = document(&keys, 29_500);
        assert_eq!(before.representation.etag, document(&keys, 29_999).representation.etag);
        assert_ne!(before.representation.etag, document(&keys, 30_000).representation.etag);
    }

    #[test]
    fn a_copy_may_not_be_kept_beyond_the_next_change() {
        let keys = [key(0), key(30_000)];
        let document = document(&keys, 29_500);
        let hour = Duration::from_secs(3_600);
        assert_eq!(document.max_age(hour, UnixSeconds(29_500)), Duration::from_secs(500));
        assert_eq!(document.max_age(Duration::from_secs(60), UnixSeconds(29_500)), Duration::from_secs(60));
        assert_eq!(document.max_age(hour, UnixSeconds(30_001)), Duration::ZERO);
    }
}
