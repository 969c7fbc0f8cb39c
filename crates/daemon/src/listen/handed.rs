//! Sockets that systemd opened for this process (socket activation, sd_listen_fds(3)) and keeps while the process is replaced: a
//! client that connects during the replacement waits instead of being refused.

use listenfd::ListenFd;
use parking_lot::Mutex;
use std::net::{SocketAddr, TcpListener};

/// Sockets that no listener has claimed.
static HANDED: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// Takes over the sockets of `LISTEN_FDS`, and removes the variable. Call it before any thread starts: it changes the
/// environment.
pub fn take_over() {
    let mut passed = ListenFd::from_env();
    let tcp = (0..passed.len()).filter_map(|index| passed.take_tcp_listener(index).ok().flatten());
    HANDED.lock().extend(tcp);
}

/// Claims the socket that listens on `address`; `None` if there is none, as for port 0.
#[must_use]
pub fn claim(address: SocketAddr) -> Option<TcpListener> {
    let mut handed = HANDED.lock();
    let index =
        handed.iter().position(|listener| listener.local_addr().is_ok_and(|bound| bound == address))?;
    let listener = handed.swap_remove(index);
    listener.set_nonblocking(true).is_ok().then_some(listener)
}

/// Returns the addresses of the unclaimed sockets, for a warning to the operator: clients that connect there wait forever.
#[must_use]
pub fn unclaimed() -> Vec<SocketAddr> {
    HANDED.lock().iter().filter_map(|listener| listener.local_addr().ok()).collect()
}
