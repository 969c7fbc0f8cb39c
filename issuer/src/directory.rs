//! The published directory: its bytes, its ETag, how long it may be kept, and who has it already.

use crate::keys::TokenKey;
use crate::rotation::{self, Lifetime, Phase, Schedule};
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::HeaderMap;
use http::header::IF_NONE_MATCH;
use postern_token::{Directory, DirectoryKey, UnixSeconds};
use std::cmp::Reverse;
use std::time::Duration;

/// The directory as it is served until `changes_at`.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) body: Bytes,
    /// A strong validator, quotes included: a hash of the body.
    pub(crate) etag: String,
    /// The moment from which another directory may be served.
    pub(crate) changes_at: UnixSeconds,
}

impl Document {
    /// The directory of `keys` at `now`.
    pub(crate) fn of(keys: &[TokenKey], schedule: &Schedule, request_uri: &str, now: UnixSeconds) -> Self {
        let listed = Directory {
            issuer_request_uri: request_uri.to_owned(),
            token_keys: in_order(keys, now).into_iter().map(entry).collect(),
        };
        let body = listed.serialize();
        let hash = digest(&SHA256, &body);
        let etag = format!("\"{}\"", hex::encode(&hash.as_ref()[..16]));
        let lives: Vec<Lifetime> = keys.iter().map(|key| key.life).collect();
        Self { body: body.into(), etag, changes_at: rotation::next_change(&lives, schedule, now) }
    }

    /// How long a copy made at `now` may be kept.
    pub(crate) fn max_age(&self, limit: Duration, now: UnixSeconds) -> Duration {
        limit.min(now.until(self.changes_at))
    }

    /// Whether the client has this directory already (RFC 9110, section 13.1.2: weak comparison, lists, `*`).
    pub(crate) fn is_known_to(&self, headers: &HeaderMap) -> bool {
        let ours = self.etag.trim_matches('"');
        headers.get_all(IF_NONE_MATCH).iter().any(|value| {
            // Between the first and the second quote, the third and the fourth: the tags, which may hold commas.
            let mut tags = value.as_bytes().split(|byte| *byte == b'"').skip(1).step_by(2);
            value.as_bytes().trim_ascii() == b"*" || tags.any(|tag| tag == ours.as_bytes())
        })
    }
}

/// The key to use now comes first, so that clients that read only the first get it right; then those to come, the
/// nearest first; then those that sign no more, the newest first.
fn in_order(keys: &[TokenKey], now: UnixSeconds) -> Vec<&TokenKey> {
    let mut keys: Vec<_> = keys.iter().filter(|key| key.life.phase(now) != Phase::Over).collect();
    let lives: Vec<Lifetime> = keys.iter().map(|key| key.life).collect();
    let current = rotation::current(&lives, now);
    keys.sort_by_key(|key| {
        let start = key.life.not_before;
        let (is_current, is_past) = (Some(key.life) == current, start <= now);
        (!is_current, is_past, if is_past { 0 } else { start.0 }, Reverse(start))
    });
    keys
}

fn entry(key: &TokenKey) -> DirectoryKey {
    DirectoryKey::type2(key.signing.spki(), Some(key.life.not_before), Some(key.life.not_after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use postern_token::{SigningKey, TokenType};
    use std::sync::Arc;

    const SCHEDULE: Schedule = Schedule {
        rotate_every: Duration::from_secs(30_000),
        publish_ahead: Duration::from_secs(1_000),
        redeem_for: Duration::from_secs(7_000),
    };

    fn key(not_before: u64) -> TokenKey {
        let signing = SigningKey::from_pkcs8(&SigningKey::generate_pkcs8().unwrap()).unwrap();
        TokenKey { signing: Arc::new(signing), life: Lifetime::starting(UnixSeconds(not_before), &SCHEDULE) }
    }

    fn document(keys: &[TokenKey], now: u64) -> Document {
        Document::of(keys, &SCHEDULE, "/token-request", UnixSeconds(now))
    }

    fn starts(document: &Document) -> Vec<u64> {
        let directory = Directory::parse(&document.body).unwrap();
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
            let directory = Directory::parse(&document.body).unwrap();
            let preferred = directory.preferred(TokenType::BlindRsa2048, UnixSeconds(now)).unwrap();
            assert_eq!(preferred.not_before.unwrap().0, expected[0]);
        }
    }

    #[test]
    fn the_etag_changes_with_the_directory_and_only_with_it() {
        let keys = [key(0), key(30_000)];
        let before = document(&keys, 29_500);
        assert_eq!(before.etag, document(&keys, 29_999).etag);
        assert_ne!(before.etag, document(&keys, 30_000).etag);
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

    #[test]
    fn if_none_match_takes_lists_weak_tags_and_the_star() {
        let document = document(&[key(0)], 5);
        let ours = document.etag.clone();
        let known = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            }
            document.is_known_to(&headers)
        };
        let bare = ours.trim_matches('"').to_owned();
        assert!(known(&[&ours]) && known(&["*"]) && known(&[" * "]));
        assert!(known(&[&format!("W/{ours}")]));
        assert!(known(&[&format!("\"a,b\", W/\"c\" , {ours}")]));
        assert!(known(&["\"a\"", &ours]));
        assert!(!known(&[]) && !known(&["\"a\""]) && !known(&[&bare]) && !known(&["\"*\""]));
        assert!(!known(&[&format!("\"x{bare}\"")]));
    }
}
