//! What goes wrong in a run, and when.

use std::fmt;

/// Milliseconds of the run.
pub(crate) type Millis = u64;

/// Microseconds since the run began.
pub(crate) type Micros = u64;

/// One fault.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Millis,
    /// For how long, for faults that last.
    pub(crate) lasts: Millis,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A memcached ends, and starts empty.
    Restart { server: usize },
    /// A memcached is stopped, and continues with what has come meanwhile.
    Freeze { server: usize },
    /// What is sent to a memcached arrives afterwards or never: from one router, or from everywhere.
    Cut { server: usize, router: Option<usize> },
    /// Connections to a memcached are refused. It keeps its records.
    Refuse { server: usize },
    /// A memcached answers later, by a number of milliseconds.
    Slow { server: usize, by: Millis },
    /// The percentage of records that was not used for longest is evicted.
    Evict { server: usize, percent: u64 },
    /// There is no room for more records.
    Full { server: usize },
    /// All of a gateway's connections are reset.
    Reset { gateway: usize },
    /// Nothing passes on all of a gateway's present connections, for ever.
    Hang { gateway: usize },
    /// What is sent on a gateway's connections arrives afterwards.
    Stall { gateway: usize },
    /// The next write on one of a gateway's connections arrives in part, and then the connection is reset.
    HalfWrite { gateway: usize },
    /// A gateway's clock goes wrong, by a number of seconds.
    Clock { gateway: usize, by: i64 },
    /// A gateway's process ends, and starts again.
    GatewayRestart { gateway: usize },
    /// A router ends, and starts again.
    RouterRestart { router: usize },
    /// A router is given other servers, for good.
    Servers { router: usize, list: Vec<usize> },
}

impl What {
    /// The server that it happens to.
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

    /// Whether records are gone, or out of reach for good.
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
