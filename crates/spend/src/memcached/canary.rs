//! Canaries: records that exist only to reveal loss. Without them a loss of spent records would go unnoticed. This
//! module has the records and their timing, and does no I/O.
//!
//! Each epoch has two kinds:
//!
//! * 64 **epoch markers**, which never expire. They are read every second and spread over the servers by their hash,
//!   so that a server that came back empty is noticed at once (one of N servers stays unwatched with a probability of
//!   at most N·(1 − 1/N)^64: one in 10^8 for 4 servers, 1% for 10).
//! * **Sentinels**, in 160 groups of 16, written when the epoch begins and each read once, at ages that grow by a
//!   tenth. memcached evicts what was not read for longest: that is the next group. Canaries that are read again and
//!   again would never be evicted and never notice.
//!
//! Every canary holds when the epoch's records expire. So the store itself keeps the expiry, and gateways that learn
//! different ones (from a directory that changes, or at different times) all use the first. Records written under an
//! earlier expiry would otherwise vanish while the epoch goes on.

use super::protocol::{Command, Kind, RecordKey, VALUE_LEN, Value};
use postern_token::{Nonce, SpentKey, TokenKeyId, TokenType, UnixSeconds};
use std::time::Duration;

/// Epoch markers of an epoch.
pub(crate) const EPOCH_MARKERS: u32 = 64;
/// Sentinels of a group, and groups of an epoch: the last is read at an age of 95 days.
pub(crate) const GROUP: u32 = 16;
pub(crate) const GROUPS: u32 = 160;
/// How much older each group is than the one before when it is read, and the age in seconds at the first, as a power.
const GROWTH: f64 = 1.1;
const FIRST: i32 = 8;
/// Copies of the record that marks all sentinels as written.
const COMPLETE: u32 = u32::MAX;
/// Copies of the record that marks the epoch's records as lost.
const LOSS: u32 = u32::MAX - 1;
pub(crate) const COPIES: u32 = 4;
/// Copies of the record that marks all epoch markers as written: enough that not all lie on one server.
const PLANTED: u32 = u32::MAX - 2;
pub(crate) const PLANTED_COPIES: u32 = 16;
/// Copies of the record that promises the epoch a mark.
const PROMISE: u32 = u32::MAX - 3;
/// Ten decimal digits.
const LARGEST: u64 = 9_999_999_999;

/// The content of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The record had been lost and was written again: so may have been others.
    pub(crate) rewritten: bool,
    /// When the epoch's records expire.
    pub(crate) expires: UnixSeconds,
    /// When the epoch was begun in this store.
    pub(crate) created: UnixSeconds,
}

impl Mark {
    pub(crate) fn value(&self) -> Value {
        let state = if self.rewritten { 'l' } else { 'w' };
        let (expires, created) = (self.expires.0.min(LARGEST), self.created.0.min(LARGEST));
        let text = format!("{state}{expires:010}.{created:010}");
        let mut value = [b'0'; VALUE_LEN];
        value.copy_from_slice(&text.as_bytes()[..VALUE_LEN]); // a letter, ten digits, a dot, ten digits: ASCII
        Value::new(value)
    }

    pub(crate) fn parse(value: &Value) -> Option<Self> {
        let rewritten = match value.as_bytes().first()? {
            b'w' => false,
            b'l' => true,
            _ => return None,
        };
        let (expires, created) = std::str::from_utf8(&value.as_bytes()[1..]).ok()?.split_once('.')?;
        let seconds = |text: &str| {
            let digits = text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse().ok().map(UnixSeconds)).flatten()
        };
        Some(Self { rewritten, expires: seconds(expires)?, created: seconds(created)? })
    }
}

/// The canaries of one epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Canaries(pub(crate) TokenKeyId);

impl Canaries {
    pub(crate) fn epoch_markers(self) -> Vec<RecordKey> {
        (0..EPOCH_MARKERS).map(|index| self.key(0, index)).collect()
    }

    pub(crate) fn sentinels(self, group: u32) -> Vec<RecordKey> {
        (0..GROUP).map(|index| self.key(group + 1, index)).collect()
    }

    /// The records that mark all sentinels as written.
    pub(crate) fn complete(self) -> Vec<RecordKey> {
        (0..COPIES).map(|index| self.key(COMPLETE, index)).collect()
    }

    /// The records that mark all epoch markers as written.
    pub(crate) fn planted(self) -> Vec<RecordKey> {
        (0..PLANTED_COPIES).map(|index| self.key(PLANTED, index)).collect()
    }

    /// The records that mark the epoch's records as lost. A canary that stands cannot be marked any more, and a gateway
    /// that is started after everything was lost writes them all anew.
    pub(crate) fn loss(self) -> Vec<RecordKey> {
        (0..COPIES).map(|index| self.key(LOSS, index)).collect()
    }

    /// The records that say that the epoch was begun by a process that plants marks. They are written before all others, so
    /// whoever finds the epoch and no mark knows that one was to come.
    pub(crate) fn promise(self) -> Vec<RecordKey> {
        (0..COPIES).map(|index| self.key(PROMISE, index)).collect()
    }

    /// Named as spent records are, by a digest of the token key's id and a number. Names that differ in a few bytes
    /// only would all lie on one server behind a router with a plain hash, such as twemproxy's FNV, and the others
    /// would be unwatched.
    fn key(self, group: u32, index: u32) -> RecordKey {
        let mut number = [0; 32];
        number[..4].copy_from_slice(&group.to_be_bytes());
        number[4..8].copy_from_slice(&index.to_be_bytes());
        let digest = SpentKey::derive(TokenType::BlindRsa2048, self.0, Nonce(number));
        RecordKey::new(Kind::Canary, digest.as_bytes())
    }
}

/// The `get` of each.
pub(crate) fn gets(keys: &[RecordKey]) -> Vec<Command> {
    keys.iter().map(|key| Command::Get(*key)).collect()
}

/// The `add` of each.
pub(crate) fn adds(keys: &[RecordKey], mark: Mark, expires: UnixSeconds) -> Vec<Command> {
    keys.iter().map(|key| Command::Add { key: *key, value: mark.value(), expires }).collect()
}

/// An expiry that means never.
pub(crate) const NEVER: UnixSeconds = UnixSeconds(u64::MAX);

/// The group to be read at this age, the last one that is due; `None` before the first.
pub(crate) fn due(age: Duration) -> Option<u32> {
    let age = age.as_secs_f64();
    if age < GROWTH.powi(FIRST) {
        return None;
    }
    let power = age.ln() / GROWTH.ln();
    Some((power as u32).saturating_sub(FIRST as u32).min(GROUPS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_mark_survives_the_memory() {
        for (rewritten, expires) in [(false, 1_900_000_000), (true, 7)] {
            let mark = Mark { rewritten, expires: UnixSeconds(expires), created: UnixSeconds(1_800_000_000) };
            assert_eq!(Mark::parse(&mark.value()), Some(mark));
        }
        let far = Mark { rewritten: false, expires: UnixSeconds(u64::MAX), created: UnixSeconds(0) };
        assert_eq!(Mark::parse(&far.value()).unwrap().expires, UnixSeconds(LARGEST));
        assert_eq!(Mark::parse(&Value::new(*b"x1900000000.1800000000")), None);
        assert_eq!(Mark::parse(&Value::new(*b"w+900000000.1800000000")), None);
    }

    #[test]
    fn no_two_canaries_share_a_key() {
        let canaries = Canaries(TokenKeyId([9; 32]));
        let mut keys: HashSet<RecordKey> = canaries.epoch_markers().into_iter().collect();
        keys.extend((0..GROUPS).flat_map(|group| canaries.sentinels(group)));
        keys.extend(canaries.complete());
        keys.extend(canaries.loss());
        keys.extend(canaries.planted());
        assert_eq!(keys.len(), (EPOCH_MARKERS + GROUP * GROUPS + 2 * COPIES + PLANTED_COPIES) as usize);
    }

    /// twemproxy: the lower half of FNV-1a, on a ring.
    #[test]
    fn canaries_spread_over_the_servers_by_a_plain_hash_too() {
        let fnv = |key: &RecordKey| {
            let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            key.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step) as u32
        };
        let canaries = Canaries(TokenKeyId([9; 32]));
        let sentinels = (0..GROUPS).step_by(4).flat_map(|group| canaries.sentinels(group)).collect();
        for keys in [canaries.epoch_markers(), sentinels] {
            let mut quarters = [0; 4];
            keys.iter().for_each(|key| quarters[(fnv(key) >> 30) as usize] += 1);
            assert!(quarters.iter().all(|count| count * 8 > keys.len()), "{quarters:?} of {}", keys.len());
        }
    }

    #[test]
    fn groups_come_due_one_after_the_other_and_last_for_three_months() {
        let at = |age: u64| due(Duration::from_secs(age));
        assert_eq!((at(0), at(2), at(3)), (None, None, Some(3)));
        assert!(at(90 * 86_400).unwrap() < GROUPS - 1);
        assert_eq!(at(u64::MAX / 2), Some(GROUPS - 1));
        let ages = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
        assert!(ages.windows(2).all(|pair| at(pair[1]) > at(pair[0])));
    }
}
