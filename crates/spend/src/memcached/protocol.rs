//! The part of memcached's ASCII protocol that the store speaks: `get` and `add` of records whose sizes are fixed.
//! Wire code without a socket.
//!
//! Records are alike so that replies can be checked byte by byte: a reply is one of the few that the command can have,
//! or the connection is not to be trusted any more. mcrouter and twemproxy serve these two commands; memcached's meta
//! commands they do not.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_token::UnixSeconds;
use std::fmt;
use std::io::Write;

/// The longest key of a record: a prefix of four and 32 bytes in base64url.
pub(crate) const KEY_LEN: usize = 47;
/// The longest value of a record: 16 bytes in base64url.
pub(crate) const VALUE_LEN: usize = 22;
/// A key in a bucket, `|<bucket>|#|<name>`: four characters, and 16 bytes in base64url. mcrouter hashes what precedes
/// `|#|`, and twemproxy what `hash_tag: "||"` encloses, so the records of a bucket lie on one server.
const BUCKET_KEY_LEN: usize = 30;
/// The value of a record in a bucket: five bytes in base64url. With it the record takes 96 bytes of memcached.
pub(crate) const BUCKET_VALUE_LEN: usize = 7;
/// The longest error line that is read. memcached's and mcrouter's are under 200 bytes.
const LONGEST_LINE: usize = 512;
/// The longest reply to one command.
pub(crate) const LONGEST_REPLY: usize = LONGEST_LINE;

/// What the keys of all records begin with, by kind (probe, offer, in a bucket): what a router may select them by.
pub const KEY_PREFIXES: [&str; 3] = ["pp1.", "po1.", "|"];

/// The key of a record: 47 bytes of `A-Z a-z 0-9 - _ .`, or 30 of these and `| #`, so nothing in it can end a command or
/// make two keys of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey {
    bytes: [u8; KEY_LEN],
    length: u8,
}

/// What a record is for. The prefix lets mcrouter route Postern's records, and keeps the kinds apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record that shows whether a server answers.
    Probe,
    /// The offer of a mark.
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

    /// A record in the bucket of this label.
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

    /// The length of its record's value.
    fn value_len(&self) -> usize {
        if usize::from(self.length) == BUCKET_KEY_LEN { BUCKET_VALUE_LEN } else { VALUE_LEN }
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All of it is ASCII.
        f.write_str(std::str::from_utf8(self.as_bytes()).unwrap_or_default())
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(redacted)")
    }
}

/// The value of a record, of the length that its key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    bytes: [u8; VALUE_LEN],
    length: u8,
}

impl Value {
    pub(crate) const fn new(bytes: [u8; VALUE_LEN]) -> Self {
        Self { bytes, length: VALUE_LEN as u8 }
    }

    /// A value of a record in a bucket.
    pub(crate) fn of_bucket(number: [u8; 5]) -> Self {
        let mut bytes = [0; VALUE_LEN];
        let encoded = URL_SAFE_NO_PAD.encode_slice(number, &mut bytes[..BUCKET_VALUE_LEN]);
        debug_assert_eq!(encoded, Ok(BUCKET_VALUE_LEN));
        Self { bytes, length: BUCKET_VALUE_LEN as u8 }
    }

    fn read(text: &[u8]) -> Self {
        let mut bytes = [0; VALUE_LEN];
        bytes[..text.len()].copy_from_slice(text);
        Self { bytes, length: text.len() as u8 }
    }

    /// The value of a reply to a `get` of `key`, which a library has read.
    pub(crate) fn of(key: &RecordKey, text: &[u8]) -> Option<Self> {
        (text.len() == key.value_len()).then(|| Self::read(text))
    }

    /// 16 bytes.
    pub(crate) fn of_bytes(number: &[u8; 16]) -> Self {
        let mut bytes = [b'A'; VALUE_LEN];
        let encoded = URL_SAFE_NO_PAD.encode_slice(number, &mut bytes);
        debug_assert_eq!(encoded, Ok(VALUE_LEN));
        Self::new(bytes)
    }

    /// What [`Value::of_bytes`] and [`Value::of_bucket`] wrote.
    pub(crate) fn decode<const N: usize>(&self) -> Option<[u8; N]> {
        URL_SAFE_NO_PAD.decode(self.as_bytes()).ok()?.try_into().ok()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// Reads a record.
    Get(RecordKey),
    /// Writes a record unless there is one.
    Add { key: RecordKey, value: Value, expires: UnixSeconds },
}

/// The kind of reply that a command expects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplyKind {
    Get(RecordKey),
    Add,
}

impl Command {
    pub(crate) fn reply_kind(&self) -> ReplyKind {
        match self {
            Self::Get(key) => ReplyKind::Get(*key),
            Self::Add { .. } => ReplyKind::Add,
        }
    }

    /// Appends the command as it is sent.
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

/// memcached's `exptime`: an absolute second, for relative ones end at 30 days. It is read as a signed 32-bit number,
/// so what lies beyond January 2038 is written as 0, never: longer is safe.
pub(crate) fn exptime(expires: UnixSeconds) -> u32 {
    u32::try_from(expires.0).ok().filter(|seconds| *seconds <= i32::MAX as u32).unwrap_or(0)
}

/// A reply that belongs to its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `STORED`: this command wrote the record.
    Stored,
    /// `NOT_STORED`: the record was there.
    NotStored,
    /// The requested record.
    Hit(Value),
    /// `END`: no record was found, which proves nothing.
    Miss,
    /// `SERVER_ERROR`: the server, or one behind it, could not do it. The connection remains usable.
    ServerError,
}

/// Bytes that are not the beginning of any reply the command can have: the rest of the stream cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled;

/// Reads one reply from the beginning of `bytes`: it and its length, or `None` while it is not complete.
pub(crate) fn parse(reply_kind: &ReplyKind, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbled> {
    const ERROR: &[u8] = b"SERVER_ERROR";
    let shorter = bytes.len().min(ERROR.len());
    // It has one byte in common with STORED.
    if shorter > 1 && bytes[..shorter] == ERROR[..shorter] {
        return error_line(bytes);
    }
    match reply_kind {
        ReplyKind::Add => {
            either(bytes, (b"STORED\r\n", Reply::Stored), (b"NOT_STORED\r\n", Reply::NotStored))
        }
        ReplyKind::Get(key) if bytes.first() == Some(&b'V') => hit(key, bytes),
        ReplyKind::Get(_) => either(bytes, (b"END\r\n", Reply::Miss), (b"END\r\n", Reply::Miss)),
    }
}

/// One of two fixed replies.
fn either(
    bytes: &[u8],
    first: (&[u8], Reply),
    second: (&[u8], Reply),
) -> Result<Option<(Reply, usize)>, Garbled> {
    for (text, reply) in [first, second] {
        if bytes.starts_with(text) {
            return Ok(Some((reply, text.len())));
        }
    }
    let begun = first.0.starts_with(bytes) || second.0.starts_with(bytes) || b"S" == bytes;
    if begun { Ok(None) } else { Err(Garbled) }
}

/// `VALUE <key> 0 22`, the value, `END`.
fn hit(key: &RecordKey, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbled> {
    let Some((value, length)) = block(key, bytes)? else { return Ok(None) };
    let end = begins(&bytes[length..], &[b"END\r\n"])?;
    Ok(end.map(|rest| (Reply::Hit(value), bytes.len() - rest.len())))
}

/// The block of one record, `VALUE <key> 0 22`, the value, a line's end: the value and the block's length, or `None` while
/// it is not complete.
pub(crate) fn block(key: &RecordKey, bytes: &[u8]) -> Result<Option<(Value, usize)>, Garbled> {
    let length: &[u8] = if key.value_len() == VALUE_LEN { b" 0 22\r\n" } else { b" 0 7\r\n" };
    let Some(rest) = begins(bytes, &[b"VALUE ", key.as_bytes(), length])? else { return Ok(None) };
    let Some((value, rest)) = rest.split_at_checked(key.value_len()) else { return Ok(None) };
    let end = begins(rest, &[b"\r\n"])?;
    Ok(end.map(|rest| (Value::read(value), bytes.len() - rest.len())))
}

/// What follows `parts`, or `None` while they are not complete.
fn begins<'a>(mut bytes: &'a [u8], parts: &[&[u8]]) -> Result<Option<&'a [u8]>, Garbled> {
    for part in parts {
        let shorter = bytes.len().min(part.len());
        if bytes[..shorter] != part[..shorter] {
            return Err(Garbled);
        }
        if shorter < part.len() {
            return Ok(None);
        }
        bytes = &bytes[shorter..];
    }
    Ok(Some(bytes))
}

/// `SERVER_ERROR <text>`, of bounded length.
fn error_line(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbled> {
    let within = &bytes[..bytes.len().min(LONGEST_LINE)];
    match within.windows(2).position(|pair| pair == b"\r\n") {
        // `SERVER_ERRORS` is no reply.
        Some(end) if end > 12 && within[12] != b' ' => Err(Garbled),
        Some(end) => Ok(Some((Reply::ServerError, end + 2))),
        None if bytes.len() >= LONGEST_LINE => Err(Garbled),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
