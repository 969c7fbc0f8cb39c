//! HTTP/2 (RFC 9113) as both ends of a connection need it: settings, a stream as one side of a relay, and turns.
//!
//! All streams of a connection share it, so none may stop the others. Received data of a stream is taken from the connection at
//! once ([`Inbox`]), and credit is returned for what its reader took: a tunnel with a slow target fills only its own window. Sent
//! data waits in a bounded queue per stream. One turn of a connection reads a bounded amount, so that the tasks of its streams
//! can take it.

mod inbox;
mod stream;

pub use inbox::{Inbox, Turns, Unpaid};
pub use stream::{Http2Stream, Queue};

use http::{HeaderMap, HeaderValue};

/// Flow-control window of a stream, in bytes: the maximum in flight or unread by its target, and per round trip.
pub const STREAM_WINDOW: u32 = 512 << 10;
/// Flow-control window of a connection, in bytes: the protocol's maximum. The windows of its streams are the bound; a smaller
/// window could be used up by stalled streams, which would stop the others.
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Largest frame, in bytes. Bulk data costs an eighth less than with the default of 16 KiB.
pub const FRAME: u32 = 64 << 10;
/// Largest piece, in bytes: its frame, with a header of nine bytes, fills four TLS records of 16 KiB. One more byte would need
/// another record and another segment.
pub const PIECE: usize = FRAME as usize - 9;
/// Maximum number of bytes of a stream that wait to be sent, in 64 pieces at most.
pub const SEND_QUEUE: usize = 128 << 10;
/// Maximum cost of small DATA frames that no task has taken yet, in bytes as `h2` counts: about 16,000 frames.
pub const FRAME_BUDGET: usize = 4 << 20;

/// Returns `true` if a field's value begins or ends with white space, which makes its message malformed (RFC 9113, section
/// 8.2.1). `h2` accepts it (hyperium/http#245).
pub fn has_padded_value(fields: &HeaderMap) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_space(value.first()) || is_space(value.last())
    };
    fields.values().any(is_padded)
}
