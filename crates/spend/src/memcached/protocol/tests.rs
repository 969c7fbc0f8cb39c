//! The wire format, byte by byte.

use super::*;
use proptest::prelude::*;

fn key(byte: u8) -> RecordKey {
    RecordKey::new(Kind::Probe, &[byte; 32])
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
    let value = Value::read(b"abcdefghijklmnopqrstuv");
    Command::Add { key: key(0), value, expires: UnixSeconds(1_900_000_000) }.encode(&mut out);
    let name = "A".repeat(43);
    let expected = format!("get pp1.{name}\r\nadd pp1.{name} 0 1900000000 22\r\nabcdefghijklmnopqrstuv\r\n");
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
    let replies: [(Option<RecordKey>, &[u8], Reply); 7] = [
        (None, b"STORED\r\n", Reply::Stored),
        (None, b"NOT_STORED\r\n", Reply::NotStored),
        (None, b"SERVER_ERROR out of memory storing object\r\n", Reply::ServerError),
        (None, b"SERVER_ERROR\r\n", Reply::ServerError),
        (Some(key(7)), b"END\r\n", Reply::Miss),
        (Some(key(7)), b"SERVER_ERROR unavailable\r\n", Reply::ServerError),
        (Some(key(7)), &hit, Reply::Hit(Value::read(b"abcdefghijklmnopqrstuv"))),
    ];
    for (asked, text, reply) in replies {
        for end in 0..text.len() {
            assert_eq!(parse(asked.as_ref(), &text[..end]), Ok(None), "{:?}", text[..end].escape_ascii());
        }
        let followed = [text, b"END\r\n"].concat();
        assert_eq!(parse(asked.as_ref(), &followed), Ok(Some((reply, text.len()))));
    }
}

#[test]
fn everything_else_is_garbled() {
    let other = stored_value();
    let longer = String::from_utf8(stored_value()).unwrap().replace(" 0 22", " 0 23").into_bytes();
    let flagged = String::from_utf8(stored_value()).unwrap().replace(" 0 22", " 1 22").into_bytes();
    let cases: [(Option<RecordKey>, &[u8]); 14] = [
        (None, b"END\r\n"),
        (None, b"STORED \r\n"),
        (None, b"STORED\n"),
        (None, b"stored\r\n"),
        (None, b"EXISTS\r\n"),
        (None, b"ERROR\r\n"),
        (None, b"CLIENT_ERROR bad data chunk\r\n"),
        (None, &other),
        (None, b"SERVER_ERRORS\r\n"),
        (Some(key(7)), b"STORED\r\n"),
        (Some(key(7)), b"END \r\n"),
        (Some(key(8)), &other),
        (Some(key(7)), &longer),
        (Some(key(7)), &flagged),
    ];
    for (asked, text) in cases {
        assert_eq!(parse(asked.as_ref(), text), Err(Unknown::Garbled), "{asked:?} {:?}", text.escape_ascii());
    }
    let endless = [b"SERVER_ERROR ".as_slice(), &[b'x'; 600]].concat();
    assert_eq!(parse(None, &endless), Err(Unknown::Garbled));
}

proptest! {
    /// The result never depends on how the bytes were split, and no bytes are read beyond the longest reply.
    #[test]
    fn cuts_change_nothing(bytes in prop::collection::vec(prop::sample::select(b"STORENDVALU_ 02\r\nx".to_vec()), 0..700)) {
        for asked in [None, Some(key(7))] {
            let whole = parse(asked.as_ref(), &bytes);
            let mut first = Ok(None);
            for end in 0..=bytes.len() {
                first = parse(asked.as_ref(), &bytes[..end]);
                if first != Ok(None) {
                    break;
                }
            }
            prop_assert_eq!(first, whole);
            if bytes.len() >= LONGEST_LINE {
                prop_assert_ne!(whole, Ok(None));
            }
        }
    }
}
