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

use crate::catalogue::{self, Position};
use crate::mint::issuer::{IssuerClient, Published};
use crate::wallet::beside::FileBeside;
use metrics::{Counter, counter};
use postern_telemetry::catalogue::from_zero;
use postern_token::{Directory, TokenKeyId, UnixSeconds};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;

/// Maximum remembered keys: those seen last. A Postern issuer lists at most 16.
const MOST_KEYS: usize = 64;
/// Maximum age of a directory's copy: a key that is absent from a copy may have been published already.
const OLDEST_COPY: Duration = Duration::from_hours(2);

/// Comparison of the issuer's keys with its earlier directories and with mirrors.
pub(crate) struct Consistency {
    /// Next to the wallet, with nothing secret in it.
    file: FileBeside,
    saved: Seen,
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
        let losses = [
            "The issuer's keys are compared with what is seen from now on",
            "after a restart the issuer's keys are not compared with those of before",
        ];
        let parse = |text: &str| serde_json::from_str(text).map_err(|error| error.to_string());
        let (file, seen): (_, Seen) = FileBeside::read(wallet, ".keys", losses, parse);
        let refused = from_zero(counter!(catalogue::AGENT_KEYS_REFUSED, Position::LABEL => hop.as_str()));
        Self { file, saved: seen.clone(), seen, mirrors, refused }
    }

    /// Checks whether tokens may be minted for `key`, which `published` lists.
    pub(crate) async fn check(&mut self, published: &Published, key: TokenKeyId) -> Result<(), Inconsistent> {
        let (url, name) = (&published.url, key.short());
        let news = self.seen.look(url.as_str(), &published.directory, UnixSeconds::now());
        let checked = if news.changed.contains(&key) {
            let (url, file) = (url.clone(), self.file.path.clone());
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
        self.save().await;
        checked
    }

    /// Saves the keys, unless only times of comparison are new.
    async fn save(&mut self) {
        if self.saved.is_as_good_as(&self.seen) {
            return;
        }
        // Strings and numbers only, which JSON can always represent.
        let text = serde_json::to_string_pretty(&self.seen).unwrap_or_default();
        if self.file.save(text).await {
            self.saved = self.seen.clone();
        }
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

/// The times of a key in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_before: Option<UnixSeconds>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_after: Option<UnixSeconds>,
}

impl Times {
    pub(crate) fn of(directory: &Directory, key: TokenKeyId) -> Option<Self> {
        ids(directory).find_map(|(listed, times)| (listed == key).then_some(times))
    }

    /// Returns `true` if `new` differs from a published time. An issuer may begin to publish a time.
    fn is_contradicted_by(self, new: Self) -> bool {
        let differs = |old: Option<UnixSeconds>, new| old.is_some() && old != new;
        differs(self.not_before, new.not_before) || differs(self.not_after, new.not_after)
    }
}

/// Iterates over the ids and times of a directory's keys. Skips entries that are not base64url.
pub(crate) fn ids(directory: &Directory) -> impl Iterator<Item = (TokenKeyId, Times)> {
    directory.token_keys.iter().filter_map(|listed| {
        let bytes = listed.key_bytes().ok()?;
        Some((TokenKeyId::of(&bytes), Times { not_before: listed.not_before, not_after: listed.not_after }))
    })
}

/// The keys that an issuer has listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Seen {
    issuer: String,
    /// Time of the last comparison.
    looked: Option<UnixSeconds>,
    /// Keys by id, in hexadecimal.
    keys: BTreeMap<String, KnownKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownKey {
    times: Times,
    since: UnixSeconds,
    seen: UnixSeconds,
    /// `true` if a mirror has listed the key with the same times.
    #[serde(default)]
    is_confirmed: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) changed: Vec<TokenKeyId>,
    /// Keys whose time began well before the last comparison, in which they were absent.
    pub(crate) unannounced: Vec<TokenKeyId>,
}

impl Seen {
    /// Compares a directory with the known keys. Stores new facts, but not changed times.
    pub(crate) fn look(&mut self, issuer: &str, directory: &Directory, now: UnixSeconds) -> News {
        if self.issuer != issuer {
            // Keys are identified by their bytes, at any issuer; the time of the last comparison applies to one issuer only.
            (self.issuer, self.looked) = (issuer.to_owned(), None);
        }
        let mut news = News::default();
        for (key, times) in ids(directory) {
            let known = self.keys.entry(key.to_hex());
            let is_new = matches!(known, Entry::Vacant(_));
            let known = known.or_insert(KnownKey { times, since: now, seen: now, is_confirmed: false });
            known.seen = now;
            if known.times.is_contradicted_by(times) {
                news.changed.push(key);
            } else {
                known.times = times;
            }
            let absent = self.looked.map(|looked| looked.saturating_sub(OLDEST_COPY));
            if is_new && absent.is_some_and(|absent| times.not_before.is_some_and(|start| start < absent)) {
                news.unannounced.push(key);
            }
        }
        self.looked = Some(now);
        while self.keys.len() > MOST_KEYS {
            // Among keys last seen at the same time, the newest is removed: a long directory does not displace keys known before.
            let order = |known: &KnownKey| (known.seen, Reverse(known.since));
            let oldest = self.keys.iter().min_by_key(|(_, known)| order(known)).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.keys.remove(&oldest));
        }
        news
    }

    pub(crate) fn is_confirmed(&self, key: TokenKeyId) -> bool {
        self.keys.get(&key.to_hex()).is_some_and(|known| known.is_confirmed)
    }

    pub(crate) fn confirm(&mut self, key: TokenKeyId) {
        if let Some(known) = self.keys.get_mut(&key.to_hex()) {
            known.is_confirmed = true;
        }
    }

    /// Returns `true` if `new` differs only in times of comparison, which are written at most once an hour.
    fn is_as_good_as(&self, new: &Self) -> bool {
        let hour = |seen: UnixSeconds| seen.0 / 3600;
        let same =
            |old: &KnownKey, new: &KnownKey| (old.times, old.is_confirmed) == (new.times, new.is_confirmed);
        self.issuer == new.issuer
            && self.looked.map(hour) == new.looked.map(hour)
            && self.keys.len() == new.keys.len()
            && new.keys.iter().all(|(key, new)| self.keys.get(key).is_some_and(|old| same(old, new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_token::{DirectoryKey, TokenType};

    const DAY: u64 = 86_400;

    /// Returns the key of rotation `number`, of an issuer with a new key every 30 days.
    fn key(number: u64) -> DirectoryKey {
        let start = number * 30 * DAY;
        let spki = vec![u8::try_from(number % 251).unwrap(); 342];
        DirectoryKey::new(
            TokenType::BlindRsa2048,
            &spki,
            Some(UnixSeconds(start)),
            Some(UnixSeconds(start + 37 * DAY)),
        )
    }

    fn directory(keys: impl IntoIterator<Item = DirectoryKey>) -> Directory {
        Directory {
            issuer_request_uri: "/r".to_owned(),
            token_keys: keys.into_iter().collect(),
            batch_limit: None,
            revoked: Vec::new(),
        }
    }

    fn look(seen: &mut Seen, keys: Vec<DirectoryKey>, now: u64) -> News {
        seen.look("https://issuer.example", &directory(keys), UnixSeconds(now))
    }

    #[test]
    fn twenty_rotations_a_restored_backup_and_a_retired_key_change_nothing() {
        let (mut seen, home) = (Seen::default(), tempfile::tempdir().unwrap());
        for hour in 24 * 30..24 * 30 * 21_u64 {
            let (now, number) = (hour * 3600, hour / (24 * 30));
            let published = (1..=number + 1).filter(|number| {
                let start = number * 30 * DAY;
                start <= now + DAY && now < start + 37 * DAY
            });
            let mut keys: Vec<_> = published.map(key).collect();
            if hour % 1_000 == 0 {
                keys.retain(|listed| *listed == key(number)); // a key is retired, and later restored
            }
            assert_eq!(look(&mut seen, keys, now), News::default(), "{hour}");
        }
        assert!(seen.keys.len() >= 20);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let open = || Consistency::open(Position::Last, &home.path().join("wallet"), Vec::new());
        let mut consistency = open();
        assert_eq!(consistency.seen, Seen::default());
        consistency.seen = seen.clone();
        runtime.block_on(consistency.save());
        assert_eq!(open().seen, seen, "a restart forgets nothing");
    }

    #[test]
    fn a_key_with_other_times_is_news_for_as_long_as_it_has_them() {
        let (mut seen, now) = (Seen::default(), 30 * DAY + 5);
        assert_eq!(look(&mut seen, vec![key(1)], now), News::default());
        let id = ids(&directory([key(1)])).next().unwrap().0;
        let mut other = key(1);
        other.not_after = Some(UnixSeconds(40 * DAY));
        for _ in 0..2 {
            assert_eq!(look(&mut seen, vec![other.clone()], now).changed, [id]);
        }
        other.not_after = None;
        assert_eq!(look(&mut seen, vec![other], now).changed, [id]);
        assert_eq!(look(&mut seen, vec![key(1)], now), News::default());
    }

    #[test]
    fn a_key_that_appears_long_after_its_time_began_was_not_published_ahead() {
        let mut seen = Seen::default();
        assert_eq!(
            look(&mut seen, vec![key(1)], 61 * DAY),
            News::default(),
            "nothing is known before the first look"
        );
        let id = ids(&directory([key(2)])).next().unwrap().0;
        assert_eq!(look(&mut seen, vec![key(1), key(2)], 61 * DAY + 60).unannounced, [id]);
        assert_eq!(look(&mut seen, vec![key(1), key(2)], 61 * DAY + 120), News::default(), "it is said once");
        assert_eq!(
            look(&mut seen, vec![key(3)], 91 * DAY),
            News::default(),
            "the agent was idle when it was published"
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut seen = Seen::default();
        for number in 0..400 {
            look(&mut seen, vec![key(number)], number);
        }
        assert_eq!(seen.keys.len(), MOST_KEYS);
        let (mut seen, known) = (Seen::default(), key(7));
        look(&mut seen, vec![known.clone()], 1);
        look(&mut seen, (0..200).map(key).collect(), 2);
        assert_eq!(seen.keys.len(), MOST_KEYS);
        let mut other = known;
        other.not_after = None;
        assert_eq!(
            look(&mut seen, vec![other], 3).changed.len(),
            1,
            "a flood of keys does not displace a known one"
        );
    }
}
