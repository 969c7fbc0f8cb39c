//! Buckets: groups of records that routers keep on one server, so that one record can witness for the others.

use super::protocol::{RecordKey, Value};
use postern_token::{MarkId, SpentKey, UnixSeconds};

/// The number of buckets. The granularity of a loss is a bucket; a mark has a witness in each.
pub const BUCKETS: u16 = 1_024;

/// A group of records whose keys begin with `|<label>|#|`. Routers select the server by the label alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bucket(u16);

impl Bucket {
    pub(crate) fn of(key: &[u8; 32]) -> Self {
        Self(u16::from_be_bytes([key[16], key[17]]) % BUCKETS)
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> + Clone {
        (0..BUCKETS).map(Self)
    }

    /// Returns four characters that spread over the servers by any hash, also by one that barely mixes, such as twemproxy's
    /// FNV-1a.
    pub(crate) fn label(self) -> [u8; 4] {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // A permutation of 24 bits: odd factors and right shifts are invertible, so all labels differ.
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

/// The keys of a token's record, of the witness for it, and of the record that revokes the witness: all in one bucket.
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

    /// Returns the key of a token's record, which does not depend on the mark.
    pub(crate) fn record(key: &SpentKey) -> RecordKey {
        Bucket::of(key.as_bytes()).record(first_half(key.as_bytes()))
    }
}

/// Returns the key of the witness: the record that shows that a bucket knows a mark.
pub(crate) fn witness(bucket: Bucket, mark: &MarkId) -> RecordKey {
    bucket.record(first_half(mark.as_bytes()))
}

/// Returns the key of the record that revokes the witness of a bucket.
pub(crate) fn closed(bucket: Bucket, mark: &MarkId) -> RecordKey {
    let mut name = *first_half(mark.as_bytes());
    name.iter_mut().for_each(|byte| *byte = !*byte); // no other half of a digest is its complement
    bucket.record(&name)
}

/// Returns the key of a record that no spend reads, so that it ages like spent records. If it is missing next to its witness,
/// records disappear undetected: the store evicts, or a router splits the bucket.
pub(crate) fn sentinel(bucket: Bucket, mark: &MarkId) -> RecordKey {
    bucket.record(mark.as_bytes().last_chunk().unwrap_or(&[0; 16]))
}

/// Encodes a second as a value: the end of a witness, or the time at which a sentinel was written.
pub(crate) fn second_value(second: UnixSeconds) -> Value {
    let seconds = second.0.min((1 << 40) - 1).to_be_bytes();
    Value::of_bytes(&[seconds[3], seconds[4], seconds[5], seconds[6], seconds[7]])
}

pub(crate) fn second(value: &Value) -> Option<UnixSeconds> {
    let [a, b, c, d, e] = value.decode()?;
    Some(UnixSeconds(u64::from_be_bytes([0, 0, 0, a, b, c, d, e])))
}

/// Returns the 128 bits that name a record: a collision, which cannot be aimed, refuses a token.
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
