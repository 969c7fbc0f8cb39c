//! A turn of a relay: what both directions use in it, and how they fail.

use crate::relay::Meter;
use crate::udp::capsule::Malformed;
use crate::udp::socket::{Bursts, Datagrams};
use postern_telemetry::metrics::ReadableCounter;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// Most bytes of capsules that wait for the client, unless one capsule alone has more.
pub(crate) const KEPT: usize = 64 << 10;
/// Size of a read from the client, in bytes.
pub(super) const READ: usize = 64 << 10;
/// Bytes that a datagram counts for a rate limit besides its own: what its packet has on a link. Frame 18, preamble and gap 20,
/// IPv4 20, UDP 8.
pub(super) const PACKET: usize = 66;
/// Reads and bursts of one turn, after which other tunnels have theirs.
pub(super) const TURN: usize = 4;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        read: vec![0; READ].into_boxed_slice(),
        bursts: Bursts::new(),
        capsules: Vec::new(),
        ends: Vec::new(),
    });
}

/// Buffers of a thread, which every relay uses for the length of a turn.
pub(super) struct Scratch {
    pub(super) read: Box<[u8]>,
    pub(super) bursts: Bursts,
    pub(super) capsules: Vec<u8>,
    /// Ends of the capsules in `capsules`, and the lengths of their datagrams.
    pub(super) ends: Vec<(usize, usize)>,
}

/// The relay's socket and counts, and the thread's buffers.
pub(super) struct Turn<'a> {
    pub(super) datagrams: &'a Datagrams,
    pub(super) meter: &'a DatagramMeter,
    pub(super) scratch: &'a mut Scratch,
}

/// Counts of datagrams, updated while they are relayed.
#[derive(Debug)]
pub struct DatagramMeter {
    pub bytes: Arc<Meter>,
    pub up: ReadableCounter,
    pub down: ReadableCounter,
    /// Datagrams that a side did not take, towards it.
    pub dropped: Meter,
}

#[cfg(test)]
impl DatagramMeter {
    /// Creates a meter that no page shows.
    pub(crate) fn apart() -> Arc<Self> {
        let Meter { up, down } = Meter::apart();
        Arc::new(Self { bytes: Arc::new(Meter::apart()), up, down, dropped: Meter::apart() })
    }
}

/// Reasons why a stream ends irregularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client sent what is no capsule, or only a part of one.
    Malformed,
    /// A side is gone.
    Broken,
}

impl From<Malformed> for Fault {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<io::Error> for Fault {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}
