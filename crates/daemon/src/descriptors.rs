//! File descriptors: the limit of this process, and the number of connections for which it suffices.
//!
//! A process without a free descriptor accepts no connection, and a gateway without one spends tokens for tunnels that it cannot
//! open. So the share of connections is fixed at the start, and the rest is left to everything else.

use crate::places::most_leaving;

/// Maximum reserve for everything but connections: listeners, workers, stores, logs, pipes of tunnels and the admin listener.
/// Below it the reserve is a quarter of the limit.
const RESERVE: usize = 512;
/// A daemon's share of this process's file descriptors. Unlimited by default.
#[derive(Clone, Copy, Debug)]
pub struct Descriptors {
    files: usize,
    daemons: usize,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self { files: usize::MAX, daemons: 1 }
    }
}

impl Descriptors {
    /// Raises the soft limit of this process to the hard one, and divides it between `daemons`. The soft limit is low for
    /// programs that use `select`; Postern does not.
    #[must_use]
    pub fn raise(daemons: usize) -> Self {
        Self { files: raised_limit().unwrap_or(usize::MAX), daemons: daemons.max(1) }
    }

    /// Returns the number of connections and streams that the share allows, at most `wanted`: a connection takes `each` descriptors,
    /// a stream of one at least one. Logs if there are too few for `wanted` connections; `key` is the setting.
    pub fn connections(self, key: &str, wanted: usize, each: usize) -> usize {
        let enough_for = self.most(each);
        if wanted > enough_for {
            let streams = if each > 1 { " (of streams of HTTP/2, twice as many)" } else { "" };
            tracing::warn!(
                "{key} is {wanted}, and with at most {} open files there can be {enough_for} connections{streams}, so that is the \
                 limit. Set the hard limit of open files (LimitNOFILE, ulimit -Hn) to {} or more, or lower {key}",
                self.files,
                needed(wanted, each).saturating_mul(self.daemons),
            );
        }
        wanted.min(enough_for.saturating_mul(each))
    }

    /// Returns the maximum number of connections at `each` descriptors per connection; at least one.
    pub fn most(self, each: usize) -> usize {
        enough_for(self.files / self.daemons, each).max(1)
    }
}

/// Returns `None` if there is no limit, or none that can be read.
#[cfg(unix)]
fn raised_limit() -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let raised = soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    usize::try_from(if raised { hard } else { soft }).ok()
}

/// Returns `None`: Windows bounds the handles of a process by its memory.
#[cfg(windows)]
fn raised_limit() -> Option<usize> {
    None
}

/// Returns the number of descriptors that a daemon needs for `connections`, at `each` descriptors per connection.
pub fn needed(connections: usize, each: usize) -> usize {
    let taken = connections.saturating_mul(each).saturating_add(most_leaving(connections));
    taken.saturating_add(taken.div_ceil(3).min(RESERVE))
}

/// Returns the maximum number of connections for which `files` descriptors suffice.
pub(crate) fn enough_for(files: usize, each: usize) -> usize {
    let (mut enough, mut too_many) = (0, (files / each.max(1)).saturating_add(1));
    while too_many - enough > 1 {
        let tried = enough + (too_many - enough) / 2;
        if needed(tried, each) <= files { enough = tried } else { too_many = tried }
    }
    enough
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_at_most_what_is_left() {
        for files in [64, 256, 1024, 4096, 65_536, 1 << 20, 1 << 30] {
            for each in [1, 2] {
                let connections = enough_for(files, each);
                assert!(needed(connections, each) <= files && needed(connections + 1, each) > files);
                let taken = connections * each + most_leaving(connections);
                assert!(taken <= files, "{files}: {taken}");
                assert!(files - taken >= RESERVE.min(files / 4 - 4), "{files}: {} are left", files - taken);
            }
        }
        assert_eq!(enough_for(20, 2), 0);
        assert!(enough_for(65_536, 2) > 30_000 && enough_for(256, 2) > 64);
    }

    #[test]
    fn daemons_share_what_there_is_and_get_no_more_than_they_want() {
        let of = |files, daemons| Descriptors { files, daemons }.connections("connections", 1000, 2);
        assert_eq!(of(65_536, 1), 1000);
        assert!(of(1024, 3) < of(1024, 1) && of(1024, 1) < 1000);
        assert_eq!(of(8, 1), 2, "a tunnel is served, come what may");
        for each in [1, 2] {
            assert_eq!(Descriptors::default().connections("connections", 1 << 40, each), 1 << 40);
        }
    }
}
