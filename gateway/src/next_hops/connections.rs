//! One worker's connections of HTTP/2 to next hops, which its tunnels share.

use super::{Member, NextHop};
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_proxy::tunnel::{Lines, OnDrain, Sharing};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a connection stays open that carries nothing; less than a gateway allows it (`limits.idle_timeout`).
const IDLE: Duration = Duration::from_mins(5);

/// One worker's connections.
pub(crate) struct Connections {
    shutdown: Shutdown,
    known: Mutex<Vec<Known>>,
}

struct Known {
    to: Weak<Member>,
    /// The local addresses that they go out from.
    sources: Box<[IpAddr]>,
    lines: Arc<Lines>,
}

impl Connections {
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        Self { shutdown, known: Mutex::default() }
    }

    /// Those to a URL of a next hop.
    pub(crate) fn to(&self, hop: &NextHop, member: &Arc<Member>, sources: &[IpAddr]) -> Arc<Lines> {
        let mut known = self.known.lock();
        let is_same = |known: &&Known| {
            std::ptr::eq(known.to.as_ptr(), Arc::as_ptr(member)) && *known.sources == *sources
        };
        if let Some(found) = known.iter().find(is_same) {
            return Arc::clone(&found.lines);
        }
        // A reload may have removed others. What they carry goes on; without tunnels they end after a while.
        known.retain(|known| known.to.strong_count() > 0);
        let lines = Arc::new(Lines::new(sharing(hop, self.shutdown.clone())));
        known.push(Known { to: Arc::downgrade(member), sources: sources.into(), lines: Arc::clone(&lines) });
        lines
    }
}

/// How tunnels through a next hop share connections.
pub(super) fn sharing(hop: &NextHop, shutdown: Shutdown) -> Sharing {
    let config = hop.config();
    Sharing {
        tunnels: config.tunnels.get(),
        lifetime: config.connection_lifetime.get(),
        idle: IDLE,
        shutdown,
        // A token was spent for each tunnel that is still to be opened.
        on_drain: OnDrain::Serve,
    }
}
