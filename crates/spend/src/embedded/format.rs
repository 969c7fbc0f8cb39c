//! The format of a records file: two headers, then records. No I/O.
//!
//! ```text
//! 0     header   magic[8] | version u32 | record length u32 | token key id[32] | expires u64 | 0 u32 | CRC-32 u32
//! 64    origin   magic[8] | mark[16] | inode u64 | born seconds u64 | born nanoseconds u32 | CRC-32 u32; zeros without a mark
//! 4096  header   the same again
//! 8192  records  key[16] | CRC-32 of the key u32
//! ```
//!
//! Integers are little-endian. The two headers lie a page apart, so that moving the expiry rewrites one while the other stays
//! intact; the valid header with the later expiry counts.

use postern_token::{Mark, SpentKey, TokenKeyId, UnixSeconds};
use std::cmp::Ordering;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

pub(crate) const HEADERS: [u64; 2] = [0, 4096];
pub(crate) const HEADER_LEN: usize = 64;
pub(crate) const RECORDS: u64 = 8192;
pub(crate) const RECORD_LEN: usize = 20;
pub(crate) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"PSTSPENT";

/// The first 128 bits of a spent key: the only part kept in memory and on disk.
///
/// Half a SHA-256 is enough. A collision can only refuse, never admit. To collide with another client's token an attacker needs
/// a second preimage (2^128 tries against an unknown nonce), and every try that counts must be a token that the issuer signed.
/// Two own tokens that collide (2^64 tries) are worth one token together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ShortKey(pub(crate) u128);

impl ShortKey {
    pub(crate) fn of(key: &SpentKey) -> Self {
        let mut front = [0; 16];
        front.copy_from_slice(&key.as_bytes()[..16]);
        Self(u128::from_le_bytes(front))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: TokenKeyId,
    pub(crate) expires: UnixSeconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    /// No magic, a wrong checksum, or a record length that version 1 does not have.
    Broken,
    /// Written by a later version of the program.
    Newer(u32),
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(RECORD_LEN as u32).to_le_bytes());
        bytes[16..48].copy_from_slice(&self.key.0);
        bytes[48..56].copy_from_slice(&self.expires.0.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, HeaderFault> {
        if bytes[..8] != MAGIC {
            return Err(HeaderFault::Broken);
        }
        // The version is checked before the checksum: a later layout may place its checksum elsewhere.
        let version = u32_at(bytes, 8);
        match version.cmp(&VERSION) {
            Ordering::Equal => {}
            Ordering::Greater => return Err(HeaderFault::Newer(version)),
            Ordering::Less => return Err(HeaderFault::Broken),
        }
        if u32_at(bytes, 60) != crc32fast::hash(&bytes[..60]) || u32_at(bytes, 12) != RECORD_LEN as u32 {
            return Err(HeaderFault::Broken);
        }
        let mut key = [0; 32];
        key.copy_from_slice(&bytes[16..48]);
        let expires = u64::from(u32_at(bytes, 48)) | u64::from(u32_at(bytes, 52)) << 32;
        Ok(Self { key: TokenKeyId(key), expires: UnixSeconds(expires) })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The classification of 20 bytes among the records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Whole(ShortKey),
    /// Zeros: a reserved place that was never written.
    Hole,
    /// A wrong checksum: torn or changed. The bytes in place of the key are kept, because refusing is safe.
    Damaged(ShortKey),
}

impl Record {
    pub(crate) fn encode(key: ShortKey) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..16].copy_from_slice(&key.0.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..16]);
        bytes[16..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_LEN]) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&bytes[..16]);
        let short = ShortKey(u128::from_le_bytes(key));
        if u32_at(bytes, 16) == crc32fast::hash(&key) {
            Self::Whole(short) // a hole never matches: the CRC of sixteen zeros is not zero
        } else if *bytes == [0; RECORD_LEN] {
            Self::Hole
        } else {
            Self::Damaged(short)
        }
    }
}

pub(crate) const ORIGIN: u64 = 64;
pub(crate) const ORIGIN_LEN: usize = 48;

const ORIGIN_MAGIC: [u8; 8] = *b"PSTNMARK";
const CHECKSUM: usize = ORIGIN_LEN - 4;

/// A mark, and the identity of the file it was drawn for.
///
/// Files that were emptied, restored or copied may lack records of later spends. So a file other than the one that its mark was
/// drawn for gets a new mark, which voids the tokens requested before. A file is identified by its inode and birth time: a
/// reboot keeps both, and a copy has others. A backup written back into the same file (`cp` over it) is detected because the
/// records move to a new file at each start and at each clean stop: an earlier backup belongs to another file. Not detected: a
/// copy made after the last start and written back into the same file before the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    mark: Mark,
    file: [u8; 20],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Unmarked,
    Marked(Mark),
    /// The mark was drawn for another file, or cannot be read.
    Moved,
}

impl Origin {
    pub(crate) fn draw(file: &Metadata) -> Self {
        Self::of(Mark::new(rand::random()), file)
    }

    pub(crate) fn of(mark: Mark, file: &Metadata) -> Self {
        Self { mark, file: identity(file) }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    pub(crate) fn encode(&self) -> [u8; ORIGIN_LEN] {
        let mut bytes = [0; ORIGIN_LEN];
        bytes[..8].copy_from_slice(&ORIGIN_MAGIC);
        bytes[8..24].copy_from_slice(self.mark.as_bytes());
        bytes[24..CHECKSUM].copy_from_slice(&self.file);
        let checksum = crc32fast::hash(&bytes[..CHECKSUM]);
        bytes[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Parses the bytes of an origin and compares them with the identity of `file`.
    pub(crate) fn read(bytes: &[u8; ORIGIN_LEN], file: &Metadata) -> Read {
        if *bytes == [0; ORIGIN_LEN] {
            return Read::Unmarked;
        }
        let (head, checksum) = bytes.split_at(CHECKSUM);
        let is_whole = head.starts_with(&ORIGIN_MAGIC) && *checksum == crc32fast::hash(head).to_le_bytes();
        match head[8..24].try_into() {
            Ok(mark) if is_whole && head[24..] == identity(file) => Read::Marked(Mark::new(mark)),
            _ => Read::Moved,
        }
    }
}

/// Returns inode and birth time; zeros for the birth time if the file system does not record it.
fn identity(file: &Metadata) -> [u8; 20] {
    let born = file.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&file.ino().to_le_bytes());
    bytes[8..16].copy_from_slice(&born.as_secs().to_le_bytes());
    bytes[16..].copy_from_slice(&born.subsec_nanos().to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const HEADER: Header = Header { key: TokenKeyId([7; 32]), expires: UnixSeconds(0x0102_0304_0506) };

    #[test]
    fn a_header_comes_back() {
        assert_eq!(Header::decode(&HEADER.encode()), Ok(HEADER));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = HEADER.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = HEADER.encode();
        bytes[8] = 2;
        assert_eq!(Header::decode(&bytes), Err(HeaderFault::Newer(2)));
        bytes[8] = 0;
        assert_eq!(Header::decode(&bytes), Err(HeaderFault::Broken));
    }

    #[test]
    fn records_are_whole_damaged_or_holes() {
        let key = ShortKey(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let bytes = Record::encode(key);
        assert!(Record::decode(&bytes) == Record::Whole(key));
        assert!(Record::decode(&[0; RECORD_LEN]) == Record::Hole);
        assert!(Record::decode(&Record::encode(ShortKey(0))) == Record::Whole(ShortKey(0)));
        for bit in 0..RECORD_LEN * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Record::decode(&bytes), Record::Damaged(_)), "bit {bit}");
        }
    }

    #[test]
    fn a_mark_belongs_to_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let (one, copy) = (directory.path().join("one"), directory.path().join("copy"));
        fs::write(&one, "records").unwrap();
        fs::copy(&one, &copy).unwrap();
        let [one, copy] = [one, copy].map(|path| fs::metadata(path).unwrap());
        let origin = Origin::draw(&one);
        assert_eq!(Origin::read(&origin.encode(), &one), Read::Marked(origin.mark()));
        assert_eq!(Origin::read(&origin.encode(), &copy), Read::Moved);
        assert_eq!(Origin::read(&[0; ORIGIN_LEN], &one), Read::Unmarked);
        assert_ne!(Origin::draw(&one).mark(), origin.mark());
    }

    #[test]
    fn a_flipped_bit_costs_the_mark() {
        let file = fs::metadata(".").unwrap();
        let bytes = Origin::draw(&file).encode();
        for bit in 0..ORIGIN_LEN * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Origin::read(&bytes, &file), Read::Moved, "bit {bit}");
        }
    }
}
