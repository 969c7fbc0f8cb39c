//! Faults of a run.

use std::fmt;

/// Milliseconds of simulated time.
pub(crate) type Millis = u64;

/// Microseconds of simulated time.
pub(crate) type Micros = u64;

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Millis,
    /// Duration, for faults that last.
    pub(crate) lasts: Millis,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A memcached ends and restarts empty.
    Restart { server: usize },
    /// A memcached is suspended, and then continues with the data received in the meantime.
    Freeze { server: usize },
    /// Data for a memcached arrives after the fault or never: from one router, or from everywhere.
    Cut { server: usize, router: Option<usize> },
    /// Connections to a memcached are refused. It keeps its records.
    Refuse { server: usize },
    /// A memcached's answers are delayed, in milliseconds.
    Slow { server: usize, by: Millis },
    /// The least recently used records are evicted, by their percentage.
    Evict { server: usize, percent: u64 },
    /// A memcached has no room for more records.
    Full { server: usize },
    /// All connections of a gateway are reset.
    Reset { gateway: usize },
    /// All present connections of a gateway stop transferring data, permanently.
    Hang { gateway: usize },
    /// Data on a gateway's connections arrives after the fault.
    Stall { gateway: usize },
    /// The next write on one of a gateway's connections arrives partially, and then the connection is reset.
    HalfWrite { gateway: usize },
    /// A gateway's clock is wrong, by a number of seconds.
    Clock { gateway: usize, by: i64 },
    /// A gateway's process ends and restarts.
    GatewayRestart { gateway: usize },
    /// A router ends and restarts.
    RouterRestart { router: usize },
    /// A router's list of servers is replaced, permanently.
    Servers { router: usize, list: Vec<usize> },
}

impl What {
    /// Returns the affected server.
    pub(crate) fn server(&self) -> Option<usize> {
        match self {
            Self::Restart { server }
            | Self::Freeze { server }
            | Self::Cut { server, .. }
            | Self::Refuse { server }
            | Self::Slow { server, .. }
            | Self::Evict { server, .. }
            | Self::Full { server } => Some(*server),
            _ => None,
        }
    }

    /// `true` if records are lost, or unreachable for the rest of the run.
    pub(crate) fn loses(&self) -> bool {
        matches!(self, Self::Restart { .. } | Self::Evict { .. } | Self::Servers { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lasts {
            0 => write!(f, "{:?}", self.what),
            lasts => write!(f, "{:?} for {lasts} ms", self.what),
        }
    }
}
