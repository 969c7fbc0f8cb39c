//! HTTP/2 (RFC 9113), as far as both ends of a connection need it: the settings, a stream as a relay's side, and turns.
//!
//! All streams of a connection share it, so none may stop the others. What a stream receives is taken from the connection at once
//! ([`Inbox`]), and credit is given back for what its reader took: a tunnel whose target is slow fills its own window and
//! nothing else. What it sends waits in its own bounded queue. And one turn of a connection reads a bounded amount, so that
//! the streams' tasks come to take it.

mod inbox;
mod queue;
mod stream;
mod turns;
mod unsent;

pub use inbox::Inbox;
pub use queue::Queue;
pub use stream::Http2Stream;
pub use turns::{Turns, Unpaid};
pub use unsent::Unsent;

use http::{HeaderMap, HeaderValue};

/// How many bytes of a stream may be on their way or unread by its target; the most for one round trip.
pub const STREAM_WINDOW: u32 = 512 << 10;
/// How many bytes of a connection may be unread. As many as the protocol allows: the windows of its streams are the bound,
/// and a connection's window that stalled streams have used up would stop the others.
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// The largest frame, in bytes; larger than the default of 16 KiB saves an eighth of what bulk costs.
pub const FRAME: u32 = 64 << 10;
/// What a piece may have so that its frame, with its header of nine bytes, fills four TLS records of 16 KiB: a byte more is a record
/// and a segment of its own.
pub const PIECE: usize = FRAME as usize - 9;
/// How many bytes of a stream may wait to be sent, in 64 pieces at most.
pub const SEND_QUEUE: usize = 128 << 10;
/// What small DATA frames that no task has taken yet may cost, in bytes as `h2` reckons: some 16,000 frames.
pub const FRAME_BUDGET: usize = 4 << 20;

/// Whether the value of a field begins or ends with white space, which makes its message malformed (RFC 9113, section 8.2.1). `h2` lets
/// it pass.
#[must_use]
pub fn has_padded_value(fields: &HeaderMap) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_padded = |value: &HeaderValue| {
        let value = value.as_bytes();
        is_space(value.first()) || is_space(value.last())
    };
    fields.values().any(is_padded)
}
