//! Whether a memcached runs at an address, and may keep spent tokens.

use nix::unistd::Uid;
use postern_spend::memcached::{Memory, inspect};
use std::net::TcpListener;
use std::time::Duration;
use tokio::runtime::Builder;

/// Where a memcached listens by default.
pub(super) const DEFAULT_PORT: u16 = 11211;
/// How long to wait for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A memcached that refuses new records when it is full.
    Fit,
    /// A memcached that drops old records when it is full: their tokens would be good again.
    Evicts,
    /// Nothing that answers as one does.
    Nothing,
}

/// Asks what listens there, as `postern doctor` does.
pub(super) fn look(address: &str) -> Found {
    let (Ok(address), Ok(runtime)) = (address.parse(), Builder::new_current_thread().enable_all().build())
    else {
        return Found::Nothing;
    };
    let server = runtime.block_on(inspect(&address, None, PATIENCE));
    match server.ok().and_then(|server| server.memcached) {
        Some(Memory { evicts: false, .. }) => Found::Fit,
        Some(_) => Found::Evicts,
        None => Found::Nothing,
    }
}

/// The command that starts one which is fit.
pub(super) fn start(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "11211"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // As root it does not start without a user.
    let user = if Uid::effective().is_root() { " -u nobody" } else { "" };
    format!("memcached -l {host} -p {port} -U 0 -m 64 -M{user}")
}

/// Addresses from this port on at which one can be started, or runs and is fit.
pub(super) fn free_or_fit(first: u16, count: usize) -> Vec<String> {
    let addresses = (first..).map(|port| format!("127.0.0.1:{port}"));
    addresses
        .filter(|address| TcpListener::bind(address).is_ok() || look(address) == Found::Fit)
        .take(count)
        .collect()
}
