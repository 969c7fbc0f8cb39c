//! Whether a memcached runs at an address, and may keep spent tokens.

use nix::unistd::Uid;
use postern_spend::memcached::{Memory, inspect};
use std::net::TcpListener;
use std::time::Duration;
use tokio::runtime::Builder;

/// Where a memcached listens by default.
pub(super) const DEFAULT_PORT: u16 = 11211;
/// Its memory, in MiB (`-m`).
const MEMORY: u64 = 64;
/// The bytes that it takes for a record of a token that a mark binds (deploy/mcrouter/README.md, "Size").
const RECORD: u64 = 96;
/// The days that a record stays, by the `rotate_every` and `redeem_for` of a new issuer.
const KEPT: u64 = 37;
/// How long to wait for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A memcached that refuses new records when it is full.
    Fit,
    /// A memcached that drops old records when it is full: no mark is planted there.
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
    format!("memcached -l {host} -p {port} -U 0 -m {MEMORY} -M{user}")
}

/// What fits into the memory that [`start`] gives it.
pub(super) fn capacity() -> String {
    let records = MEMORY * 1024 * 1024 / RECORD;
    let (records, tunnels) = (records / 1_000 * 1_000, records / KEPT / 100 * 100);
    format!(
        "-m {MEMORY} holds {records} records, those of {tunnels} tunnels a day, since a record stays for {KEPT} days ([keys] rotate_every \
         and redeem_for). When it is full, requests are refused: for more tunnels raise -m in proportion."
    )
}

/// Addresses from this port on at which one can be started, or runs and is fit.
pub(super) fn free_or_fit(first: u16, count: usize) -> Vec<String> {
    let addresses = (first..).map(|port| format!("127.0.0.1:{port}"));
    addresses
        .filter(|address| TcpListener::bind(address).is_ok() || look(address) == Found::Fit)
        .take(count)
        .collect()
}
