//! The used part of memcached's ASCII protocol: `get` and `add` of records with fixed sizes. No I/O.
//!
//! Records have fixed sizes so that replies can be checked byte by byte: a reply is one of the few that the command can have, or
//! the connection is no longer trusted. mcrouter and twemproxy serve these two commands, but not memcached's meta commands.

use crate::Unknown;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_token::UnixSeconds;
use std::fmt;
use std::io::{self, Write};

/// The length of the longest key: a prefix of four bytes, and 32 bytes in base64url.
pub(crate) const KEY_LEN: usize = 47;
/// The length of the longest value: 16 bytes in base64url.
pub(crate) const VALUE_LEN: usize = 22;
/// The length of a key in a bucket, `|<bucket>|#|<name>`: the bucket's four characters, and 16 bytes in base64url. mcrouter
/// hashes the part before `|#|`, and twemproxy the part that `hash_tag: "||"` encloses, so the records of a bucket lie on one
/// server.
const BUCKET_KEY_LEN: usize = 30;
/// The length of a value in a bucket: five bytes in base64url. With it the record takes 96 bytes of memcached.
pub(crate) const BUCKET_VALUE_LEN: usize = 7;
/// The longest error line that is read. memcached's and mcrouter's are under 200 bytes.
pub(crate) const LONGEST_LINE: usize = 512;

/// The prefixes of all record keys by kind (probe, offer, in a bucket), by which a router may select them.
pub const KEY_PREFIXES: [&str; 3] = ["pp1.", "po1.", "|"];

/// The key of a record: 47 bytes of `A-Z a-z 0-9 - _ .`, or 30 of these and `| #`, so no byte can end a command or split the
/// key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey {
    bytes: [u8; KEY_LEN],
    length: u8,
}

/// The kind of a record outside of buckets. Its prefix lets mcrouter route Postern's records, and separates the kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record that tests whether a server answers.
    Probe,
    Offer,
}

impl RecordKey {
    pub(crate) fn new(kind: Kind, name: &[u8; 32]) -> Self {
        let mut bytes = [b'A'; KEY_LEN];
        bytes[..4].copy_from_slice(KEY_PREFIXES[kind as usize].as_bytes());
        let encoded = URL_SAFE_NO_PAD.encode_slice(name, &mut bytes[4..]);
        debug_assert_eq!(encoded, Ok(KEY_LEN - 4));
        Self { bytes, length: KEY_LEN as u8 }
    }

    pub(crate) fn in_bucket(label: [u8; 4], name: &[u8; 16]) -> Self {
        let mut bytes = [0; KEY_LEN];
        bytes[0] = b'|';
        bytes[1..5].copy_from_slice(&label);
        bytes[5..8].copy_from_slice(b"|#|");
        let encoded = URL_SAFE_NO_PAD.encode_slice(name, &mut bytes[8..BUCKET_KEY_LEN]);
        debug_assert_eq!(encoded, Ok(BUCKET_KEY_LEN - 8));
        Self { bytes, length: BUCKET_KEY_LEN as u8 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn value_len(&self) -> usize {
        if usize::from(self.length) == BUCKET_KEY_LEN { BUCKET_VALUE_LEN } else { VALUE_LEN }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All bytes are ASCII.
        f.write_str(std::str::from_utf8(self.as_bytes()).unwrap_or_default())
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(redacted)")
    }
}

/// The value of a record, of the length that its key determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: [u8; VALUE_LEN],
    length: u8,
}

impl Value {
    /// Encodes the value of a record: 5 bytes in a bucket, 16 outside.
    pub(crate) fn of_bytes<const N: usize>(number: &[u8; N]) -> Self {
        const { assert!(N == 5 || N == 16) };
        let mut bytes = [0; VALUE_LEN];
        let length = URL_SAFE_NO_PAD.encode_slice(number, &mut bytes).unwrap_or_default(); // there is room
        Self { bytes, length: length as u8 }
    }

    /// Copies a text of at most [`VALUE_LEN`] characters.
    pub(crate) fn read(text: &[u8]) -> Self {
        let mut bytes = [0; VALUE_LEN];
        bytes[..text.len()].copy_from_slice(text);
        Self { bytes, length: text.len() as u8 }
    }

    /// Returns the value of a reply to a `get` of `key` that a library has parsed; `None` if its length is wrong.
    pub(crate) fn of(key: &RecordKey, text: &[u8]) -> Option<Self> {
        (text.len() == key.value_len()).then(|| Self::read(text))
    }

    pub(crate) fn decode<const N: usize>(&self) -> Option<[u8; N]> {
        URL_SAFE_NO_PAD.decode(self.as_bytes()).ok()?.try_into().ok()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Get(RecordKey),
    /// Writes a record unless it exists.
    Add {
        key: RecordKey,
        value: Value,
        expires: UnixSeconds,
    },
}

impl Command {
    /// Returns the key that the reply names; `None` for an `add`.
    pub(crate) fn asks_for(&self) -> Option<&RecordKey> {
        match self {
            Self::Get(key) => Some(key),
            Self::Add { .. } => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Get(key) => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(key.as_bytes());
            }
            Self::Add { key, value, expires } => {
                out.extend_from_slice(b"add ");
                out.extend_from_slice(key.as_bytes());
                // Writing to a Vec cannot fail.
                let _ = write!(out, " 0 {} {}\r\n", exptime(*expires), value.length);
                out.extend_from_slice(value.as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns memcached's `exptime` as an absolute second, because relative ones end at 30 days. memcached parses it as a signed
/// 32-bit number, so an expiry after January 2038 becomes 0, "never": longer is safe.
pub(crate) fn exptime(expires: UnixSeconds) -> u32 {
    u32::try_from(expires.0).ok().filter(|seconds| *seconds <= i32::MAX as u32).unwrap_or(0)
}

/// A reply that belongs to its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `STORED`: this command wrote the record.
    Stored,
    NotStored,
    Hit(Value),
    /// `END`: no record was found, which proves nothing.
    Miss,
    /// `SERVER_ERROR`: the server, or one behind it, failed to execute the command. The connection remains usable.
    ServerError,
}

/// The error while there is no connection. Readiness reports the cause.
pub(crate) const NOT_CONNECTED: Unknown = Unknown::Unavailable(io::ErrorKind::NotConnected);

/// The reason why there is no reply, and whether the command may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No byte of the command left this process: it may be sent elsewhere.
    NotSent(Unknown),
    /// The command may have been executed, or may still be: it must not be repeated.
    Sent(Unknown),
}

impl From<Failure> for Unknown {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(unknown) | Failure::Sent(unknown) => unknown,
        }
    }
}

/// Parses one reply from the beginning of `bytes`, to the `get` of a key or to an `add`. Returns the reply and its length, or
/// `None` if it is incomplete.
pub(crate) fn parse(key: Option<&RecordKey>, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Unknown> {
    const ERROR: &[u8] = b"SERVER_ERROR";
    let shorter = bytes.len().min(ERROR.len());
    // Its first byte is also that of STORED.
    if shorter > 1 && bytes[..shorter] == ERROR[..shorter] {
        return error_line(bytes);
    }
    match key {
        None => one_of(bytes, &[(b"STORED\r\n", Reply::Stored), (b"NOT_STORED\r\n", Reply::NotStored)]),
        Some(key) if bytes.first() == Some(&b'V') => hit(key, bytes),
        Some(_) => one_of(bytes, &[(b"END\r\n", Reply::Miss)]),
    }
}

fn one_of(bytes: &[u8], replies: &[(&[u8], Reply)]) -> Result<Option<(Reply, usize)>, Unknown> {
    if let Some((text, reply)) = replies.iter().find(|(text, _)| bytes.starts_with(text)) {
        return Ok(Some((*reply, text.len())));
    }
    let begun = bytes == b"S" || replies.iter().any(|(text, _)| text.starts_with(bytes));
    if begun { Ok(None) } else { Err(Unknown::Garbled) }
}

/// Parses `VALUE <key> 0 <length>`, the value, and `END`.
fn hit(key: &RecordKey, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Unknown> {
    let Some((value, length)) = block(key, bytes)? else { return Ok(None) };
    let end = begins(&bytes[length..], &[b"END\r\n"])?;
    Ok(end.map(|rest| (Reply::Hit(value), bytes.len() - rest.len())))
}

/// Parses the block of one record: `VALUE <key> 0 <length>`, the value, and a line's end. Returns the value and the block's
/// length, or `None` if it is incomplete.
pub(crate) fn block(key: &RecordKey, bytes: &[u8]) -> Result<Option<(Value, usize)>, Unknown> {
    let length: &[u8] = if key.value_len() == VALUE_LEN { b" 0 22\r\n" } else { b" 0 7\r\n" };
    let Some(rest) = begins(bytes, &[b"VALUE ", key.as_bytes(), length])? else { return Ok(None) };
    let Some((value, rest)) = rest.split_at_checked(key.value_len()) else { return Ok(None) };
    let end = begins(rest, &[b"\r\n"])?;
    Ok(end.map(|rest| (Value::read(value), bytes.len() - rest.len())))
}

/// Returns the bytes after `parts`, or `None` if they are incomplete.
fn begins<'a>(mut bytes: &'a [u8], parts: &[&[u8]]) -> Result<Option<&'a [u8]>, Unknown> {
    for part in parts {
        let shorter = bytes.len().min(part.len());
        if bytes[..shorter] != part[..shorter] {
            return Err(Unknown::Garbled);
        }
        if shorter < part.len() {
            return Ok(None);
        }
        bytes = &bytes[shorter..];
    }
    Ok(Some(bytes))
}

fn error_line(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Unknown> {
    let within = &bytes[..bytes.len().min(LONGEST_LINE)];
    match within.windows(2).position(|pair| pair == b"\r\n") {
        // `SERVER_ERRORS` is no reply.
        Some(end) if end > 12 && within[12] != b' ' => Err(Unknown::Garbled),
        Some(end) => Ok(Some((Reply::ServerError, end + 2))),
        None if bytes.len() >= LONGEST_LINE => Err(Unknown::Garbled),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
