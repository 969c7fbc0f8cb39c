//! Reading vector files, and the random source that repeats what a vector's author drew.

use blind_rsa_signatures::reexports::rand::{TryCryptoRng, TryRng};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;

/// The objects of a file: a list, or one alone.
pub(crate) fn load(json: &str) -> Vec<Value> {
    match serde_json::from_str(json).unwrap() {
        Value::Array(list) => list,
        one => vec![one],
    }
}

/// A field; the Rust files write `sk_s` and `pk_s` where the RFC has `skS` and `pkS`.
pub(crate) fn text<'v>(vector: &'v Value, name: &str) -> &'v str {
    let rust_name = name.replace('S', "_s");
    vector.get(name).or_else(|| vector.get(rust_name)).unwrap().as_str().unwrap()
}

pub(crate) fn hex(vector: &Value, name: &str) -> Vec<u8> {
    hex::decode(text(vector, name)).unwrap()
}

/// Gives out each piece once, whole: the requested length must be exactly its length.
pub(crate) struct FixedRng(VecDeque<Vec<u8>>);

impl FixedRng {
    /// The blind is written big-endian, and drawn little-endian.
    pub(crate) fn new(first: &[u8], second: &[u8], blind: &[u8]) -> Self {
        let reversed = blind.iter().rev().copied().collect();
        let pieces = [first.to_vec(), second.to_vec(), reversed];
        Self(pieces.into_iter().filter(|piece| !piece.is_empty()).collect())
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryRng for FixedRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unreachable!("only whole pieces are drawn")
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        unreachable!("only whole pieces are drawn")
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        bytes.copy_from_slice(&self.0.pop_front().unwrap());
        Ok(())
    }
}

impl TryCryptoRng for FixedRng {}

/// A valid token of type 2 (354 bytes, 472 characters): the first of RFC 9578.
pub(crate) fn token_bytes() -> Vec<u8> {
    hex(&load(include_str!("../vectors/rfc9578_type2.json"))[0], "token")
}

/// The key that signed it, as it is published.
pub(crate) fn spki() -> Vec<u8> {
    hex(&load(include_str!("../vectors/rfc9578_type2.json"))[0], "pkS")
}
