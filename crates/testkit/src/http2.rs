//! HTTP/2 frames as bytes, for input that no client library sends.

/// Start of a client's connection: the preface (RFC 9113, section 3.4), and settings that change nothing.
pub const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Frame type (section 6.1).
pub const DATA: u8 = 0;
/// Frame type (section 6.2).
pub const HEADERS: u8 = 1;
/// Frame type (section 6.3).
pub const PRIORITY: u8 = 2;
/// Frame type (section 6.4).
pub const RST_STREAM: u8 = 3;
/// Frame type (section 6.5).
pub const SETTINGS: u8 = 4;
/// Frame type (section 6.7).
pub const PING: u8 = 6;
/// Frame type (section 6.8).
pub const GOAWAY: u8 = 7;
/// Frame type (section 6.9).
pub const WINDOW_UPDATE: u8 = 8;
/// Frame type (section 6.10).
pub const CONTINUATION: u8 = 9;

/// Flag of HEADERS and DATA: the last frame of the stream, except CONTINUATION.
pub const END_STREAM: u8 = 1;
/// Flag of HEADERS: no CONTINUATION follows.
pub const END_HEADERS: u8 = 4;

/// Encodes a frame (section 4.1).
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the type and payload of each complete frame in `bytes`.
#[must_use]
pub fn frames(bytes: &[u8]) -> Vec<(u8, &[u8])> {
    all(bytes).into_iter().map(|(kind, _, payload)| (kind, payload)).collect()
}

/// Returns the type and payload of each complete frame of one stream in `bytes`.
#[must_use]
pub fn frames_of(bytes: &[u8], stream: u32) -> Vec<(u8, &[u8])> {
    let of_stream = all(bytes).into_iter().filter(|(_, of, _)| *of == stream);
    of_stream.map(|(kind, _, payload)| (kind, payload)).collect()
}

fn all(mut bytes: &[u8]) -> Vec<(u8, u32, &[u8])> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        found.push((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload));
        bytes = rest;
    }
    found
}

/// Encodes a field block without compression or indexing (RFC 7541, section 6.2.2).
#[must_use]
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Encodes a string: its length with a prefix of seven bits (section 5.1), and its bytes.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![text.len().min(127) as u8];
    if let Some(mut left) = text.len().checked_sub(127) {
        while left >= 128 {
            bytes.push((left % 128) as u8 | 128);
            left /= 128;
        }
        bytes.push(left as u8);
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}
