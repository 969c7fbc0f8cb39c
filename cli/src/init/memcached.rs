//! Whether a memcached runs at an address, and may keep spent tokens.

use nix::unistd::Uid;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where a memcached listens by default.
pub(super) const DEFAULT_PORT: u16 = 11211;
/// How long to wait for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Its settings are a few kilobytes.
const MOST: u64 = 64 * 1024;

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

/// Asks for the settings of what listens there.
pub(super) fn look(address: &str) -> Found {
    let Some(settings) = settings(address) else { return Found::Nothing };
    let evictions = settings.lines().find_map(|line| line.trim_end().strip_prefix("STAT evictions "));
    match evictions {
        Some("off") => Found::Fit,
        Some(_) => Found::Evicts,
        None => Found::Nothing,
    }
}

fn settings(address: &str) -> Option<String> {
    let address = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"stats settings\r\nquit\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(MOST).read_to_end(&mut answer).ok()?;
    String::from_utf8(answer).ok()
}

/// The command that starts one which is fit.
pub(super) fn start(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "11211"));
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // As root it does not start without a user.
    let user = if Uid::effective().is_root() { " -u nobody" } else { "" };
    format!("memcached -l {host} -p {port} -U 0 -m 64 -M{user}")
}

/// Where the program is to be had.
pub(super) const INSTALL: &str = "apt-get install memcached, or what your system has in its place";

pub(super) fn is_installed() -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join("memcached").is_file())
}
