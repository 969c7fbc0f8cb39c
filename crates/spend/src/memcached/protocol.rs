//! The part of memcached's ASCII protocol that the store speaks: `get` and `add` of records whose sizes are fixed.
//! Wire code without a socket.
//!
//! Records are alike so that replies can be checked byte by byte: a reply is one of the few that the command can have,
//! or the connection is not to be trusted any more. mcrouter and twemproxy serve these two commands; memcached's meta
//! commands they do not.

use super::world::random_bytes;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_token::{SpentKey, UnixSeconds};
use std::fmt;
use std::io::Write;

/// Bytes of a record's key: a prefix of four and 32 bytes in base64url.
pub(crate) const KEY_LEN: usize = 47;
/// Bytes of a record's value: 16 bytes in base64url.
pub(crate) const VALUE_LEN: usize = 22;
/// The longest error line that is read. memcached's and mcrouter's are under 200 bytes.
const LONGEST_LINE: usize = 512;
/// The longest reply to one command.
pub(crate) const LONGEST_REPLY: usize = LONGEST_LINE;

/// What the keys of all records begin with, by kind (spent, canary, probe): what a router may select them by.
pub const KEY_PREFIXES: [&str; 3] = ["ps1.", "pc1.", "pp1."];

/// The key of a record: 47 bytes of `A-Z a-z 0-9 - _ .`, so nothing in it can end a command or make two keys of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RecordKey([u8; KEY_LEN]);

/// What a record is for. The prefix lets mcrouter route Postern's records, and keeps the kinds apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A token is spent.
    Spent,
    /// A canary of an epoch.
    Canary,
    /// A probe of one process.
    Probe,
}

impl RecordKey {
    /// The record of a spent token.
    pub(crate) fn spent(key: &SpentKey) -> Self {
        Self::new(Kind::Spent, key.as_bytes())
    }

    pub(crate) fn new(kind: Kind, name: &[u8; 32]) -> Self {
        let mut key = [b'A'; KEY_LEN];
        key[..4].copy_from_slice(KEY_PREFIXES[kind as usize].as_bytes());
        let encoded = URL_SAFE_NO_PAD.encode_slice(name, &mut key[4..]);
        debug_assert_eq!(encoded, Ok(KEY_LEN - 4));
        Self(key)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Base64url is ASCII.
        f.write_str(std::str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKey(redacted)")
    }
}

/// The value of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value(pub(crate) [u8; VALUE_LEN]);

impl Value {
    /// A unique value: the id of an attempt to spend, or of a probe. Random, so that records do not reveal which
    /// process wrote them or in which order.
    pub(crate) fn unique() -> Self {
        let mut value = [b'A'; VALUE_LEN];
        let encoded = URL_SAFE_NO_PAD.encode_slice(random_bytes::<16>(), &mut value);
        debug_assert_eq!(encoded, Ok(VALUE_LEN));
        Self(value)
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
                out.extend_from_slice(&key.0);
            }
            Self::Add { key, value, expires } => {
                out.extend_from_slice(b"add ");
                out.extend_from_slice(&key.0);
                // Writing to a Vec cannot fail.
                let _ = write!(out, " 0 {} {VALUE_LEN}\r\n", exptime(*expires));
                out.extend_from_slice(&value.0);
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
    if shorter > 0 && bytes[..shorter] == ERROR[..shorter] {
        // One byte in common with STORED.
        if shorter > 1 {
            return error_line(bytes);
        }
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
    let rest = match begins(bytes, &[b"VALUE ", key.as_bytes(), b" 0 22\r\n"])? {
        Some(rest) => rest,
        None => return Ok(None),
    };
    let Some((value, rest)) = rest.split_first_chunk::<VALUE_LEN>() else { return Ok(None) };
    match begins(rest, &[b"\r\nEND\r\n"])? {
        Some(rest) => Ok(Some((Reply::Hit(Value(*value)), bytes.len() - rest.len()))),
        None => Ok(None),
    }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> RecordKey {
        RecordKey::new(Kind::Spent, &[byte; 32])
    }

    fn stored_value() -> Vec<u8> {
        let mut text = b"VALUE ".to_vec();
        text.extend_from_slice(key(7).as_bytes());
        text.extend_from_slice(b" 0 22\r\nabcdefghijklmnopqrstuv\r\nEND\r\n");
        text
    }

    #[test]
    fn commands_are_what_memcached_documents() {
        let mut out = Vec::new();
        Command::Get(key(0)).encode(&mut out);
        let value = Value(*b"abcdefghijklmnopqrstuv");
        Command::Add { key: key(0), value, expires: UnixSeconds(1_900_000_000) }.encode(&mut out);
        let name = "A".repeat(43);
        let expected =
            format!("get ps1.{name}\r\nadd ps1.{name} 0 1900000000 22\r\nabcdefghijklmnopqrstuv\r\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn an_expiry_beyond_32_bits_is_never_and_not_at_once() {
        assert_eq!(exptime(UnixSeconds(2_147_483_647)), 2_147_483_647);
        assert_eq!(exptime(UnixSeconds(2_147_483_648)), 0);
        assert_eq!(exptime(UnixSeconds(u64::MAX)), 0);
    }

    #[test]
    fn whole_replies_are_read_and_what_follows_is_left() {
        let hit = stored_value();
        let replies: [(ReplyKind, &[u8], Reply); 7] = [
            (ReplyKind::Add, b"STORED\r\n", Reply::Stored),
            (ReplyKind::Add, b"NOT_STORED\r\n", Reply::NotStored),
            (ReplyKind::Add, b"SERVER_ERROR out of memory storing object\r\n", Reply::ServerError),
            (ReplyKind::Add, b"SERVER_ERROR\r\n", Reply::ServerError),
            (ReplyKind::Get(key(7)), b"END\r\n", Reply::Miss),
            (ReplyKind::Get(key(7)), b"SERVER_ERROR unavailable\r\n", Reply::ServerError),
            (ReplyKind::Get(key(7)), &hit, Reply::Hit(Value(*b"abcdefghijklmnopqrstuv"))),
        ];
        for (reply_kind, text, reply) in replies {
            for end in 0..text.len() {
                assert_eq!(parse(&reply_kind, &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
            }
            let followed = [text, b"END\r\n"].concat();
            assert_eq!(parse(&reply_kind, &followed), Ok(Some((reply, text.len()))));
        }
    }

    #[test]
    fn everything_else_is_garbled() {
        let other = stored_value();
        let longer = String::from_utf8(stored_value()).unwrap().replace(" 0 22", " 0 23").into_bytes();
        let flagged = String::from_utf8(stored_value()).unwrap().replace(" 0 22", " 1 22").into_bytes();
        let cases: [(ReplyKind, &[u8]); 14] = [
            (ReplyKind::Add, b"END\r\n"),
            (ReplyKind::Add, b"STORED \r\n"),
            (ReplyKind::Add, b"STORED\n"),
            (ReplyKind::Add, b"stored\r\n"),
            (ReplyKind::Add, b"EXISTS\r\n"),
            (ReplyKind::Add, b"ERROR\r\n"),
            (ReplyKind::Add, b"CLIENT_ERROR bad data chunk\r\n"),
            (ReplyKind::Add, &other),
            (ReplyKind::Add, b"SERVER_ERRORS\r\n"),
            (ReplyKind::Get(key(7)), b"STORED\r\n"),
            (ReplyKind::Get(key(7)), b"END \r\n"),
            (ReplyKind::Get(key(8)), &other),
            (ReplyKind::Get(key(7)), &longer),
            (ReplyKind::Get(key(7)), &flagged),
        ];
        for (reply_kind, text) in cases {
            assert_eq!(parse(&reply_kind, text), Err(Garbled), "{reply_kind:?} {:?}", text.escape_ascii());
        }
        let endless = [b"SERVER_ERROR ".as_slice(), &[b'x'; 600]].concat();
        assert_eq!(parse(&ReplyKind::Add, &endless), Err(Garbled));
    }

    proptest! {
        /// A verdict never depends on how the bytes were cut, and no bytes are read beyond the longest reply.
        #[test]
        fn cuts_change_nothing(bytes in prop::collection::vec(prop::sample::select(b"STORENDVALU_ 02\r\nx".to_vec()), 0..700)) {
            for reply_kind in [ReplyKind::Add, ReplyKind::Get(key(7))] {
                let whole = parse(&reply_kind, &bytes);
                let mut first = Ok(None);
                for end in 0..=bytes.len() {
                    first = parse(&reply_kind, &bytes[..end]);
                    if first != Ok(None) {
                        break;
                    }
                }
                prop_assert_eq!(first, whole);
                if bytes.len() >= LONGEST_REPLY {
                    prop_assert_ne!(whole, Ok(None));
                }
            }
        }
    }
}
