//! Capsules (RFC 9297, section 3.2) that carry UDP payloads (RFC 9298, section 5).
//!
//! ```
//! use postern_proxy::udp::capsule::{Decoder, MAX_PAYLOAD, encode};
//!
//! let mut stream = Vec::new();
//! encode(b"one", &mut stream);
//! encode(b"two", &mut stream);
//! let (mut decoder, mut input, mut found) = (Decoder::new(MAX_PAYLOAD), &stream[..], Vec::new());
//! while let Some(payload) = decoder.next(&mut input)? {
//!     found.push(payload.to_vec());
//! }
//! assert_eq!(found, [b"one", b"two"]);
//! # Ok::<(), postern_proxy::udp::capsule::Malformed>(())
//! ```

/// Longest payload of a UDP packet, in bytes: the length field has 16 bits, and the header 8 bytes (RFC 9298, section 5).
pub const MAX_PAYLOAD: usize = 65_527;

/// Longest head of an encoded capsule, in bytes: type, length, context.
pub const MAX_HEAD: usize = 1 + 4 + 1;

/// Type of a capsule with a datagram (RFC 9297, section 3.5).
const DATAGRAM: u64 = 0;
/// Context of a UDP payload (RFC 9298, section 4).
const UDP_PAYLOAD: u64 = 0;
/// Longest head that a sender may choose: three integers of eight bytes.
const MAX_READ_HEAD: usize = 24;
/// Capacity, in bytes, that a decoder keeps between payloads that arrive in pieces: a packet on most paths has no more.
const KEPT: usize = 2048;

/// Reasons why a stream is malformed and must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a DATAGRAM capsule is too short for its context")]
    NoContext,
    #[error("a UDP payload is longer than 65,527 bytes")]
    TooLong,
}

/// Finds the UDP payloads in the bytes of a stream. Skips capsules of other types and datagrams of other contexts without keeping
/// a byte of them. Holds one payload that arrives in pieces, at most, and never more of it than has arrived, rounded up to twice
/// as much.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// Bytes of a head that arrives in pieces.
    head: [u8; MAX_READ_HEAD],
    head_len: usize,
    /// Bytes of a payload that arrives in pieces.
    payload: Vec<u8>,
    /// Longest payload that is not skipped.
    largest: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// A payload of this length.
    Payload(usize),
    /// A payload that was returned from `payload`.
    Returned,
    /// Bytes left to skip.
    Skipping(u64),
}

/// Part of a stream that goes on: the head of a capsule, or bytes behind it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece<'i> {
    head: [u8; MAX_READ_HEAD],
    head_len: usize,
    is_datagram: bool,
    /// Number of bytes behind the head; `None` if the piece has no head.
    pub length: Option<u64>,
    /// Bytes behind a head.
    pub body: &'i [u8],
}

impl Piece<'_> {
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// Returns `true` for the head of a UDP payload.
    pub const fn begins_datagram(&self) -> bool {
        self.is_datagram
    }
}

impl Decoder {
    /// Creates a decoder at the begin of a stream. It skips payloads longer than `largest`, which the caller could not send on
    /// (RFC 9298, section 5).
    pub const fn new(largest: usize) -> Self {
        Self { state: State::Head, head: [0; MAX_READ_HEAD], head_len: 0, payload: Vec::new(), largest }
    }

    /// Returns the next UDP payload, and advances `input` behind it; `None` once `input` is used up. A payload that `input` holds
    /// whole is not copied.
    ///
    /// # Errors
    /// [`Malformed`]: the stream must end, and the decoder must not be used again.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<&'s [u8]>, Malformed> {
        loop {
            match self.state {
                State::Head => match self.read_head(input)? {
                    Some(state) => self.state = state,
                    None => return Ok(None),
                },
                State::Payload(length) if self.payload.is_empty() && input.len() >= length => {
                    self.state = State::Head;
                    return Ok(Some(take(input, length)));
                }
                State::Payload(length) => {
                    let piece = take(input, length - self.payload.len());
                    self.keep(piece, length);
                    if self.payload.len() < length {
                        return Ok(None);
                    }
                    self.state = State::Returned;
                    return Ok(Some(&self.payload));
                }
                State::Returned => {
                    self.payload.clear();
                    self.payload.shrink_to(KEPT);
                    self.state = State::Head;
                }
                State::Skipping(left) => {
                    if !self.skip(left, input) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Returns the next piece of a stream that goes on: the head of a capsule, or bytes behind it. Nothing is kept but a head that
    /// arrives in pieces. `None` once `input` is used up. Not for a decoder that also returns payloads.
    pub fn piece<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Piece<'i>>, Malformed> {
        let (before, held) = (*input, self.head_len);
        if let State::Skipping(left @ 1..) = self.state {
            self.skip(left, input);
            let body = &before[..before.len() - input.len()];
            return Ok((!body.is_empty()).then(|| Piece { body, ..Piece::default() }));
        }
        self.state = State::Head;
        let Some(state) = self.read_head(input)? else { return Ok(None) };
        let read = &before[..before.len() - input.len()];
        let mut piece = Piece { head: self.head, head_len: held + read.len(), ..Piece::default() };
        piece.head[held..piece.head_len].copy_from_slice(read);
        let left = match state {
            State::Payload(left) => left as u64,
            State::Skipping(left) => left,
            State::Head | State::Returned => 0, // follows no head
        };
        (piece.length, piece.is_datagram) = (Some(left), matches!(state, State::Payload(_)));
        self.state = State::Skipping(left);
        Ok(Some(piece))
    }

    /// Skips up to `left` bytes; returns `true` if no more are left to skip.
    fn skip(&mut self, left: u64, input: &mut &[u8]) -> bool {
        let here = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        take(input, here);
        let left = left - here as u64;
        self.state = if left == 0 { State::Head } else { State::Skipping(left) };
        left == 0
    }

    /// Returns `true` between two capsules. A stream that ends elsewhere is incomplete (RFC 9297, section 3.3).
    pub const fn is_between(&self) -> bool {
        match self.state {
            State::Head => self.head_len == 0,
            State::Returned | State::Skipping(0) => true,
            State::Payload(_) | State::Skipping(_) => false,
        }
    }

    /// Reads a head, which may be cut anywhere; `None` if its end has not arrived.
    fn read_head(&mut self, input: &mut &[u8]) -> Result<Option<State>, Malformed> {
        if self.head_len == 0
            && let Some((state, length)) = self.parse(input)?
        {
            take(input, length);
            return Ok(Some(state));
        }
        while let [byte, rest @ ..] = *input {
            *input = rest;
            self.head[self.head_len] = *byte;
            self.head_len += 1;
            if let Some((state, _)) = self.parse(&self.head[..self.head_len])? {
                self.head_len = 0;
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Parses a head, and returns what follows it and its own length.
    fn parse(&self, bytes: &[u8]) -> Result<Option<(State, usize)>, Malformed> {
        let Some((kind, after_kind)) = integer(bytes, 0) else { return Ok(None) };
        let Some((length, after_length)) = integer(bytes, after_kind) else { return Ok(None) };
        if kind != DATAGRAM {
            return Ok(Some((State::Skipping(length), after_length)));
        }
        if length == 0 {
            return Err(Malformed::NoContext);
        }
        let Some(&first) = bytes.get(after_length) else { return Ok(None) };
        let Some(left) = length.checked_sub(width(first) as u64) else { return Err(Malformed::NoContext) };
        let Some((context, end)) = integer(bytes, after_length) else { return Ok(None) };
        let state = match usize::try_from(left) {
            _ if context != UDP_PAYLOAD => State::Skipping(left),
            Ok(left) if left <= self.largest && left <= MAX_PAYLOAD => State::Payload(left),
            Ok(left) if left <= MAX_PAYLOAD => State::Skipping(left as u64),
            _ => return Err(Malformed::TooLong),
        };
        Ok(Some((state, end)))
    }

    /// Keeps a piece of a payload of `length` bytes.
    fn keep(&mut self, piece: &[u8], length: usize) {
        let needed = self.payload.len() + piece.len();
        if needed > self.payload.capacity() {
            let capacity = (2 * self.payload.capacity()).max(needed).min(length);
            self.payload.reserve_exact(capacity - self.payload.len());
        }
        self.payload.extend_from_slice(piece);
    }
}

/// Appends the capsule of a UDP payload: its head, and one copy of the payload. Drops a payload above [`MAX_PAYLOAD`].
pub fn encode(payload: &[u8], stream: &mut Vec<u8>) {
    if payload.len() > MAX_PAYLOAD {
        return;
    }
    let length = payload.len() + 1; // with the context
    stream.push(DATAGRAM as u8);
    match length {
        0..0x40 => stream.push(length as u8),
        0x40..0x4000 => stream.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
        _ => stream.extend_from_slice(&(length as u32 | 0x8000_0000).to_be_bytes()),
    }
    stream.push(UDP_PAYLOAD as u8);
    stream.extend_from_slice(payload);
}

fn take<'i>(input: &mut &'i [u8], length: usize) -> &'i [u8] {
    let (taken, rest) = input.split_at(length.min(input.len()));
    *input = rest;
    taken
}

/// Returns the length of an integer by its first byte (RFC 9000, section 16).
const fn width(first: u8) -> usize {
    1 << (first >> 6)
}

/// Returns the integer at `from`, and the position after it; `None` if its end has not arrived.
fn integer(bytes: &[u8], from: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(from)?;
    let end = from + width(first);
    let rest = bytes.get(from + 1..end)?;
    let value = rest.iter().fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a stream that arrives in pieces of this size.
    fn decoded(stream: &[u8], piece: usize, largest: usize) -> (Result<Vec<Vec<u8>>, Malformed>, bool) {
        let (mut decoder, mut found) = (Decoder::new(largest), Vec::new());
        for mut input in stream.chunks(piece) {
            loop {
                match decoder.next(&mut input) {
                    Ok(Some(payload)) => found.push(payload.to_vec()),
                    Ok(None) => break,
                    Err(malformed) => return (Err(malformed), false),
                }
            }
            assert!(input.is_empty());
            assert!(decoder.payload.capacity() <= MAX_PAYLOAD);
        }
        (Ok(found), decoder.is_between())
    }

    fn found(stream: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let (found, is_whole) = decoded(stream, piece, MAX_PAYLOAD);
        assert!(is_whole);
        found.unwrap()
    }

    #[test]
    fn payloads_of_each_length_come_out_as_they_went_in_wherever_the_stream_is_cut() {
        let payloads = [0, 1, 61, 62, 63, 64, 1200, 16_381, 16_382, 16_383, 16_384, 65_507, MAX_PAYLOAD];
        let payloads: Vec<Vec<u8>> =
            payloads.iter().map(|&length| (0..length).map(|at| (at % 251) as u8).collect()).collect();
        let mut stream = Vec::new();
        payloads.iter().for_each(|payload| encode(payload, &mut stream));
        for piece in [1, 2, 3, 7, 1000, 16_384, stream.len()] {
            assert_eq!(found(&stream, piece), payloads, "in pieces of {piece}");
        }
    }

    /// RFC 9000, appendix A.1.
    #[test]
    fn integers_are_read_in_each_width_also_in_more_bytes_than_they_need() {
        let long = [0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c];
        assert_eq!(integer(&long, 0), Some((151_288_809_941_952_652, 8)));
        assert_eq!(integer(&[0x9d, 0x7f, 0x3e, 0x7d], 0), Some((494_878_333, 4)));
        assert_eq!(integer(&[0x7b, 0xbd], 0), Some((15_293, 2)));
        assert_eq!(integer(&[0x25], 0), Some((37, 1)));
        assert_eq!(integer(&[0x40, 0x25], 0), Some((37, 2)));
        for short in [&long[..7], &[0x40], &[]] {
            assert_eq!(integer(short, 0), None);
        }
        let wide = [0x40, 0, 0x80, 0, 0, 5, 0xc0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(decoded(&wide, 1, MAX_PAYLOAD).0, Err(Malformed::NoContext));
        let wide = [0x40, 0, 0x80, 0, 0, 9, 0xc0, 0, 0, 0, 0, 0, 0, 0, b'x'];
        assert_eq!(found(&wide, 1), [b"x"]);
    }

    #[test]
    fn other_capsules_and_other_contexts_are_skipped() {
        let mut stream = vec![0x17, 3, 0, 0, 0]; // an unknown type, whose value looks like a datagram
        encode(b"one", &mut stream);
        stream.extend([0x17, 0]);
        stream.extend([0, 4, 2, 0, 1, 0]); // context 2
        stream.extend([0, 1, 4]);
        encode(b"two", &mut stream);
        for piece in [1, 2, 5, stream.len()] {
            assert_eq!(found(&stream, piece), [b"one", b"two"]);
        }
    }

    #[test]
    fn an_unknown_capsule_of_the_greatest_length_is_skipped_and_nothing_of_it_kept() {
        let mut decoder = Decoder::new(MAX_PAYLOAD);
        let mut head = &[0x17, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..];
        assert_eq!(decoder.next(&mut head), Ok(None));
        let zeros = vec![0; 1 << 20];
        for _ in 0..16 {
            assert_eq!(decoder.next(&mut &zeros[..]), Ok(None));
        }
        assert_eq!(decoder.payload.capacity(), 0);
        assert!(!decoder.is_between());
    }

    #[test]
    fn a_malformed_datagram_ends_the_stream_at_its_head() {
        let length = |length: u64| (length | 0xc000_0000_0000_0000).to_be_bytes();
        let datagram = |of: u64, context: &[u8]| [&[0], &length(of)[..], context].concat();
        for piece in [1, 32] {
            let malformed = |stream: &[u8]| decoded(stream, piece, MAX_PAYLOAD).0.err();
            assert_eq!(malformed(&datagram(0, &[])), Some(Malformed::NoContext));
            assert_eq!(malformed(&datagram(1, &[0x40])), Some(Malformed::NoContext));
            assert_eq!(malformed(&datagram(7, &[0xc0])), Some(Malformed::NoContext));
            assert_eq!(malformed(&datagram(65_529, &[0])), Some(Malformed::TooLong));
            assert_eq!(malformed(&datagram((1 << 62) - 1, &[0])), Some(Malformed::TooLong));
            // Only payloads of UDP have the limit.
            assert_eq!(malformed(&datagram((1 << 62) - 1, &[2])), None);
            assert_eq!(malformed(&datagram(65_528, &[0])), None);
        }
    }

    #[test]
    fn a_payload_that_cannot_be_sent_on_is_skipped_without_being_kept() {
        let mut stream = Vec::new();
        encode(&[7; 1501], &mut stream);
        encode(&[8; 1500], &mut stream);
        for piece in [1, 100, stream.len()] {
            assert_eq!(decoded(&stream, piece, 1500), (Ok(vec![vec![8; 1500]]), true));
        }
    }

    #[test]
    fn no_more_is_kept_than_has_arrived() {
        let mut stream = Vec::new();
        encode(&[0; MAX_PAYLOAD], &mut stream);
        let mut decoder = Decoder::new(MAX_PAYLOAD);
        assert_eq!(decoder.next(&mut &stream[..100]), Ok(None));
        assert!(decoder.payload.capacity() <= 200);
        assert!(decoder.next(&mut &stream[100..]).unwrap().is_some());
        assert_eq!(decoder.next(&mut &[][..]), Ok(None));
        assert!(decoder.payload.capacity() <= KEPT);
    }

    #[test]
    fn a_stream_that_ends_within_a_capsule_is_incomplete() {
        let mut stream = vec![0x17, 2, 0, 0];
        encode(b"payload", &mut stream);
        for end in 0..stream.len() {
            let is_whole = decoded(&stream[..end], 1, MAX_PAYLOAD).1;
            assert_eq!(is_whole, end == 0 || end == 4, "after {end}");
        }
    }

    #[test]
    fn a_payload_that_no_packet_holds_has_no_capsule() {
        let mut stream = Vec::new();
        encode(&vec![0; MAX_PAYLOAD + 1], &mut stream);
        assert!(stream.is_empty());
        encode(&vec![0; MAX_PAYLOAD], &mut stream);
        assert_eq!(stream.len(), MAX_HEAD + MAX_PAYLOAD);
    }
}
