//! Checks if a memcached at an address is fit to store spent tokens.

use nix::unistd::Uid;
use postern_spend::memcached::{Memory, inspect};
use std::net::TcpListener;
use std::time::Duration;
use tokio::runtime::Builder;

pub(super) const DEFAULT_PORT: u16 = 11211;
/// Memory of a suggested memcached, in MiB (`-m`).
pub(super) const MEMORY: u64 = 64;
/// Bytes per record of a token that a mark binds (deploy/mcrouter/README.md, "Size").
const RECORD: u64 = 96;
/// Retention of a record, in days, by the `rotate_every` and `redeem_for` of a new issuer.
const KEPT: u64 = 37;
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A memcached that refuses new records when it is full; with the size of its memory in MiB.
    Fit(u64),
    /// A memcached that evicts old records when it is full: no mark is planted there.
    Evicts,
    /// No memcached answers.
    Nothing,
}

/// Inspects the server at `address`, as `postern doctor` does.
pub(super) fn look(address: &str) -> Found {
    let (Ok(address), Ok(runtime)) = (address.parse(), Builder::new_current_thread().enable_all().build())
    else {
        return Found::Nothing;
    };
    let server = runtime.block_on(inspect(&address, None, PATIENCE));
    match server.ok().and_then(|server| server.memcached) {
        Some(Memory { evicts: false, most, .. }) => Found::Fit(most >> 20),
        Some(_) => Found::Evicts,
        None => Found::Nothing,
    }
}

/// Returns the command that starts a suitable memcached.
pub(super) fn start(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "11211"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // memcached refuses to start as root without `-u`.
    let user = if Uid::effective().is_root() { " -u nobody" } else { "" };
    format!("memcached -l {host} -p {port} -U 0 -m {MEMORY} -M{user}")
}

/// Describes the capacity of a memcached with this memory, in MiB.
pub(super) fn capacity(memory: u64) -> String {
    let records = memory * 1024 * 1024 / RECORD;
    let (records, tunnels) = (records / 1_000 * 1_000, records / KEPT / 100 * 100);
    format!(
        "-m {memory} holds {records} records, those of {tunnels} tunnels a day, since a record stays for {KEPT} days ([keys] rotate_every \
         and redeem_for). When it is full, requests are refused: for more tunnels raise -m in proportion."
    )
}

/// Returns `count` loopback addresses from port `first` on, each free or served by a suitable memcached.
pub(super) fn free_or_fit(first: u16, count: usize) -> Vec<String> {
    let addresses = (first..).map(|port| format!("127.0.0.1:{port}"));
    addresses
        .filter(|address| TcpListener::bind(address).is_ok() || matches!(look(address), Found::Fit(_)))
        .take(count)
        .collect()
}
