//! Buckets: groups of records that routers keep on one server, so that a record there can witness for the others.

use super::protocol::{RecordKey, Value};
use postern_token::{MarkId, SpentKey, UnixSeconds};

/// How many buckets there are. A loss is as fine as a bucket; a mark has a witness in each.
pub const BUCKETS: u16 = 1_024;

/// A group of records whose keys begin alike, `|<label>|#|`. Routers choose the server by the label alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket(u16);

impl Bucket {
    /// Where the record of a token lies.
    pub(crate) fn of(key: &[u8; 32]) -> Self {
        Self(u16::from_be_bytes([key[16], key[17]]) % BUCKETS)
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> + Clone {
        (0..BUCKETS).map(Self)
    }

    /// Four characters that spread over the servers by any hash, also one that barely mixes, such as twemproxy's FNV-1a.
    pub(crate) fn label(self) -> [u8; 4] {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // A permutation of 24 bits: odd factors and shifts to the right can be undone, so no two labels are alike.
        let mut bits = u32::from(self.0) + 1;
        for factor in [0x009E_3779_u32, 0x0085_EBCB, 0x00C2_B2AF] {
            bits = bits.wrapping_mul(factor) & 0x00FF_FFFF;
            bits ^= bits >> 11;
        }
        [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize])
    }

    pub(crate) fn record(self, name: &[u8; 16]) -> RecordKey {
        RecordKey::in_bucket(self.label(), name)
    }
}

/// The record of a token that a mark binds, the one that witnesses for it, and the one that takes this back: all in one
/// bucket.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) record: RecordKey,
    pub(crate) witness: RecordKey,
    pub(crate) closed: RecordKey,
}

impl Bound {
    pub(crate) fn new(key: &SpentKey, mark: &MarkId) -> Self {
        let bucket = Bucket::of(key.as_bytes());
        Self { record: Self::record(key), witness: witness(bucket, mark), closed: closed(bucket, mark) }
    }

    /// The record of a token, whatever its mark.
    pub(crate) fn record(key: &SpentKey) -> RecordKey {
        Bucket::of(key.as_bytes()).record(first_half(key.as_bytes()))
    }
}

/// The record by which a bucket shows that a mark is known there.
pub(crate) fn witness(bucket: Bucket, mark: &MarkId) -> RecordKey {
    bucket.record(first_half(mark.as_bytes()))
}

/// The record by which a bucket shows that its witness proves nothing any more.
pub(crate) fn closed(bucket: Bucket, mark: &MarkId) -> RecordKey {
    let mut name = *first_half(mark.as_bytes());
    name.iter_mut().for_each(|byte| *byte = !*byte); // no other half of a digest is its complement
    bucket.record(&name)
}

/// A record of a bucket that is never read for a spend, so that it ages as spent records do. Where it is missing beside its
/// witness, records are lost without a trace: the store evicts, or a router parts the bucket.
pub(crate) fn sentinel(bucket: Bucket, mark: &MarkId) -> RecordKey {
    bucket.record(mark.as_bytes().last_chunk().unwrap_or(&[0; 16]))
}

/// A value that is a second: that of a witness is when it ends, that of a sentinel when it was written.
pub(crate) fn second_value(second: UnixSeconds) -> Value {
    let seconds = second.0.min((1 << 40) - 1).to_be_bytes();
    Value::of_bucket([seconds[3], seconds[4], seconds[5], seconds[6], seconds[7]])
}

/// The second that a value is.
pub(crate) fn second(value: &Value) -> Option<UnixSeconds> {
    let [a, b, c, d, e] = value.decode()?;
    Some(UnixSeconds(u64::from_be_bytes([0, 0, 0, a, b, c, d, e])))
}

/// 128 bits name a record: a collision, which cannot be aimed, refuses a token.
fn first_half(digest: &[u8; 32]) -> &[u8; 16] {
    digest.first_chunk().unwrap_or(&[0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_buckets_share_a_label() {
        let labels: HashSet<_> = Bucket::all().map(Bucket::label).collect();
        assert_eq!(labels.len(), usize::from(BUCKETS));
    }

    #[test]
    fn a_record_and_its_witness_share_what_routers_hash() {
        let key = SpentKey::derive(
            postern_token::TokenType::BlindRsa2048,
            postern_token::TokenKeyId([1; 32]),
            postern_token::Nonce([2; 32]),
        );
        let mark =
            MarkId::derive("a", postern_token::TokenKeyId([1; 32]), postern_token::ChallengeDigest([3; 32]));
        let bound = Bound::new(&key, &mark);
        let [record, witness, closed] =
            [bound.record, bound.witness, bound.closed].map(|key| key.to_string());
        assert_eq!([&record[..8], &closed[..8]], [&witness[..8]; 2]);
        assert!(record.starts_with('|') && record[5..].starts_with("|#|"), "{record}");
        let sentinel = sentinel(Bucket::of(key.as_bytes()), &mark).to_string();
        assert_eq!(HashSet::from([record, witness, closed, sentinel]).len(), 4);
    }

    /// Gateways of all versions must look for a record under one name.
    #[test]
    fn names_stay_what_they_are() {
        let mut key = [7; 32];
        (key[16], key[17]) = (0xab, 0xcd);
        assert_eq!(Bucket::of(&key), Bucket(0x3cd));
        let label = |bucket| String::from_utf8(Bucket(bucket).label().to_vec()).unwrap();
        assert_eq!([0, 1, 0x3cd, 1023].map(label), ["o9J-", "Nkin", "4CE9", "H6-k"]);
    }

    #[test]
    fn a_value_may_be_a_second() {
        for (end, read) in [(0, 0), (1_900_000_000, 1_900_000_000), (u64::MAX, 0xff_ffff_ffff)] {
            assert_eq!(second(&second_value(UnixSeconds(end))), Some(UnixSeconds(read)));
        }
        assert_eq!(second(&Value::of_bytes(&[7; 16])), None);
    }

    /// twemproxy: the lower half of FNV-1a of the label, on a ring.
    #[test]
    fn buckets_spread_over_the_servers_by_a_plain_hash_too() {
        let mut sixteenths = [0; 16];
        for bucket in Bucket::all() {
            let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            let hash = bucket.label().iter().fold(0xcbf2_9ce4_8422_2325, step) as u32;
            sixteenths[(hash >> 28) as usize] += 1;
        }
        assert!(sixteenths.iter().all(|count| (32..=128).contains(count)), "{sixteenths:?}");
    }
}
