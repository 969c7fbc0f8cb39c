//! Capsules with datagrams: wherever the stream is cut, the same payloads are found in it, and each is a part of it.

use postern_proxy::udp::capsule::{Decoder, MAX_PAYLOAD, Malformed, encode};

pub fn run(bytes: &[u8]) {
    let whole = decoded(bytes, bytes.len().max(1));
    for piece in [1, 3] {
        assert_eq!(decoded(bytes, piece), whole);
    }
    for size in [1, 3, bytes.len().max(1)] {
        let (passed, datagrams) = passed_on(bytes, size);
        assert!(bytes.starts_with(&passed));
        assert!((whole.0.len()..=whole.0.len() + 1).contains(&datagrams)); // the last may be cut
    }
    let (payloads, _, _) = whole;
    let mut again = Vec::new();
    for payload in &payloads {
        assert!(bytes.windows(payload.len().max(1)).any(|part| part.starts_with(payload)));
        encode(payload, &mut again);
    }
    assert!(again.len() <= bytes.len());
    assert_eq!(decoded(&again, 7), (payloads, Ok(()), true));
}

/// Returns the bytes that go on to another proxy, and the datagrams that begin in them.
fn passed_on(bytes: &[u8], size: usize) -> (Vec<u8>, usize) {
    let (mut decoder, mut passed, mut datagrams) = (Decoder::new(MAX_PAYLOAD), Vec::new(), 0);
    for mut input in bytes.chunks(size) {
        loop {
            match decoder.piece(&mut input) {
                Ok(Some(piece)) => {
                    passed.extend_from_slice(piece.head());
                    passed.extend_from_slice(piece.body);
                    datagrams += usize::from(piece.begins_datagram());
                }
                Ok(None) => break,
                Err(_) => return (passed, datagrams),
            }
        }
    }
    (passed, datagrams)
}

/// Returns the payloads, the end of the stream, and whether it lies between two capsules.
fn decoded(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<(), Malformed>, bool) {
    let (mut decoder, mut found) = (Decoder::new(MAX_PAYLOAD), Vec::new());
    for mut input in bytes.chunks(piece) {
        loop {
            match decoder.next(&mut input) {
                Ok(Some(payload)) => found.push(payload.to_vec()),
                Ok(None) => break,
                Err(malformed) => return (found, Err(malformed), false),
            }
        }
    }
    (found, Ok(()), decoder.is_between())
}
