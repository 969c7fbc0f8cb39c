//! Sockets that systemd opened for this process and keeps while it is replaced (socket activation, sd_listen_fds(3)): a client
//! that connects meanwhile waits and is not refused.

use listenfd::ListenFd;
use parking_lot::Mutex;
use std::net::{SocketAddr, TcpListener};

/// Those that no listener has claimed.
static HANDED: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// Takes over the sockets of `LISTEN_FDS`, and takes the variable away. To be called before there are threads: the environment
/// is changed.
pub fn take_over() {
    let mut passed = ListenFd::from_env();
    let tcp = (0..passed.len()).filter_map(|index| passed.take_tcp_listener(index).ok().flatten());
    HANDED.lock().extend(tcp);
}

/// The one that listens on this address, whose port is not 0.
#[must_use]
pub fn claim(address: SocketAddr) -> Option<TcpListener> {
    let mut handed = HANDED.lock();
    let index =
        handed.iter().position(|listener| listener.local_addr().is_ok_and(|bound| bound == address))?;
    let listener = handed.swap_remove(index);
    listener.set_nonblocking(true).is_ok().then_some(listener)
}

/// The addresses of those that nothing has claimed, to be said to the operator: clients wait there for ever.
#[must_use]
pub fn unclaimed() -> Vec<SocketAddr> {
    HANDED.lock().iter().filter_map(|listener| listener.local_addr().ok()).collect()
}
