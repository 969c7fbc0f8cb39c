//! One `get` for the keys of several callers.
//!
//! memcached sends the reply to each `get` by itself, but gathers the replies to `add`: in a burst, as many `get`s cost
//! both sides several times what one `get` of all the keys costs. A key's record comes as a block of its own, in any
//! order (twemproxy queries several servers at once); the keys without a block were not found.

use crate::memcached::protocol::{Garbled, RecordKey, Reply, ReplyKind, Value, block, parse};

/// The most keys in one command: it stays below the 2,048 bytes to which memcached looks for the end of a line.
pub(super) const MOST_KEYS: usize = 32;

/// Appends one `get` of all keys, of which there is at least one.
pub(super) fn encode<'a>(keys: impl Iterator<Item = &'a RecordKey>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// A piece of the reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The record of a key, by its place among `keys`.
    Block(usize, Value),
    /// All others have this reply: [`Reply::Miss`] or [`Reply::ServerError`].
    End(Reply),
}

/// Reads one piece from the beginning of `bytes`: it and its length, or `None` while it is not complete. `missing` are
/// the keys for which no block has come yet, with their places; `first` is the first key of all.
pub(super) fn piece<'a>(
    first: &RecordKey,
    mut missing: impl Iterator<Item = (usize, &'a RecordKey)>,
    bytes: &[u8],
) -> Result<Option<(Piece, usize)>, Garbled> {
    if bytes.first() != Some(&b'V') {
        // mcrouter may send what it found before the error of a dead server. But an error must belong to at least one
        // missing key.
        return match parse(&ReplyKind::Get(*first), bytes)? {
            Some((Reply::ServerError, _)) if missing.next().is_none() => Err(Garbled),
            end => Ok(end.map(|(reply, length)| (Piece::End(reply), length))),
        };
    }
    let mut begun = false;
    for (place, key) in missing {
        match block(key, bytes) {
            Ok(Some((value, length))) => return Ok(Some((Piece::Block(place, value), length))),
            Ok(None) => begun = true,
            Err(Garbled) => {}
        }
    }
    if begun { Ok(None) } else { Err(Garbled) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::bucket::Bucket;
    use crate::memcached::protocol::{KEY_LEN, Kind, VALUE_LEN};

    fn key(byte: u8) -> RecordKey {
        RecordKey::new(Kind::Probe, &[byte; 32])
    }

    fn block(byte: u8) -> Vec<u8> {
        [b"VALUE ", key(byte).as_bytes(), b" 0 22\r\n", &[b'a' + byte; VALUE_LEN], b"\r\n"].concat()
    }

    fn read(keys: &[RecordKey], bytes: &[u8]) -> Result<Option<(Piece, usize)>, Garbled> {
        piece(&key(1), keys.iter().enumerate(), bytes)
    }

    #[test]
    fn one_command_asks_for_all_keys() {
        let mut out = Vec::new();
        encode([key(1), key(2)].iter(), &mut out);
        assert_eq!(out, format!("get {} {}\r\n", key(1), key(2)).into_bytes());
        let longest = 3 + MOST_KEYS * (KEY_LEN + 1) + 2;
        assert!(longest < 2_048, "{longest}");
    }

    #[test]
    fn pieces_are_read_however_they_are_cut() {
        let keys = [key(1), key(2), key(3)];
        let second = Piece::Block(1, Value::new([b'c'; VALUE_LEN]));
        let pieces: [(Vec<u8>, Piece); 3] = [
            (block(2), second),
            (b"END\r\n".to_vec(), Piece::End(Reply::Miss)),
            (b"SERVER_ERROR unavailable\r\n".to_vec(), Piece::End(Reply::ServerError)),
        ];
        for (text, piece) in pieces {
            for end in 0..text.len() {
                assert_eq!(read(&keys, &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
            }
            let length = text.len();
            let followed = [text, block(1)].concat();
            assert_eq!(read(&keys, &followed), Ok(Some((piece, length))));
        }
    }

    #[test]
    fn records_in_buckets_are_shorter() {
        let of_bucket = Bucket::of(&[7; 32]).record(&[1; 16]);
        let text = format!("VALUE {of_bucket} 0 7\r\nAAECAwQ\r\n").into_bytes();
        let keys = [key(1), of_bucket, of_bucket];
        for end in 0..text.len() {
            assert_eq!(read(&keys, &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
        }
        let value = Value::of_bucket([0, 1, 2, 3, 4]);
        assert_eq!(read(&keys, &text), Ok(Some((Piece::Block(1, value), text.len()))));
        assert_eq!(read(&keys[..1], &text), Err(Garbled));
    }

    #[test]
    fn what_was_not_asked_for_is_garbled() {
        let keys = [key(1), key(2)];
        let with = |from: &str, to: &str| String::from_utf8(block(1)).unwrap().replace(from, to).into_bytes();
        for text in [
            block(3),
            with(" 0 22", " 0 23"),
            with(" 0 22", " 1 22"),
            with("VALUE", "VALVE"),
            with("b\r\n", "bb\r"),
            b"STORED\r\n".to_vec(),
            b"NOT_STORED\r\n".to_vec(),
        ] {
            assert_eq!(read(&keys, &text), Err(Garbled), "{:?}", text.escape_ascii());
        }
        // Every key has its block.
        assert_eq!(read(&[], b"SERVER_ERROR late\r\n"), Err(Garbled));
        assert_eq!(read(&[], &block(1)), Err(Garbled));
        assert_eq!(read(&[], b"END\r\n"), Ok(Some((Piece::End(Reply::Miss), 5))));
    }
}
