//! Fast hash of names, which are digests already. It is the same in each run, so that runs can be repeated.

use std::hash::Hasher;

#[derive(Default)]
pub(crate) struct Digest(u64);

impl Digest {
    /// Returns the hash of one name.
    pub(crate) fn of(name: &[u8]) -> u64 {
        let mut digest = Self::default();
        digest.write(name);
        digest.finish()
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 31)
    }
}
