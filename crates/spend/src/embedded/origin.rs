//! The mark of a records file, bound to the identity of the file.
//!
//! Files that were emptied, restored or copied may lack records of later spends. So a file other than the one that its mark was
//! drawn for gets a new mark, which voids the tokens requested before. A file is identified by its inode and birth time: a
//! reboot keeps both, and a copy has others. A backup written back into the same file (`cp` over it) is detected because the
//! records move to a new file at each start and at each clean stop: an earlier backup belongs to another file. Not detected: a
//! copy made after the last start and written back into the same file before the next start.
//!
//! ```text
//! 64   magic[8] | mark[16] | inode u64 | born seconds u64 | born nanoseconds u32 | CRC-32 u32
//! ```
//!
//! The origin follows the first header; files without a mark have zeros there. Integers are little-endian.

use postern_token::Mark;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// Offset of the origin in the file.
pub(crate) const ORIGIN: u64 = 64;
pub(crate) const ORIGIN_LEN: usize = 48;

const MAGIC: [u8; 8] = *b"PSTNMARK";
const CHECKSUM: usize = ORIGIN_LEN - 4;

/// A mark, and the identity of the file it was drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    mark: Mark,
    file: [u8; 20],
}

/// The content of the origin field of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The file has no mark.
    Unmarked,
    /// The file has this mark.
    Marked(Mark),
    /// The mark was drawn for another file, or cannot be read.
    Moved,
}

impl Origin {
    /// Draws a new mark for a file.
    pub(crate) fn draw(file: &Metadata) -> Self {
        Self::of(Mark::new(rand::random()), file)
    }

    /// Binds an existing mark to a file.
    pub(crate) fn of(mark: Mark, file: &Metadata) -> Self {
        Self { mark, file: identity(file) }
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    pub(crate) fn encode(&self) -> [u8; ORIGIN_LEN] {
        let mut bytes = [0; ORIGIN_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
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
        let is_whole = head.starts_with(&MAGIC) && *checksum == crc32fast::hash(head).to_le_bytes();
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
