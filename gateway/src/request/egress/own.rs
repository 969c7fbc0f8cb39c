//! Addresses of this machine. A tunnel to one of them would reach services that are not meant for the outside, even if the
//! address is public.

use nix::ifaddrs::getifaddrs;
use parking_lot::RwLock;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum age of the list: addresses change, IPv6's temporary ones daily.
const FRESH: Duration = Duration::from_secs(10);

/// Addresses that were read last, and the time of the read.
pub(super) struct OwnAddresses(RwLock<(Vec<IpAddr>, Instant)>);

impl OwnAddresses {
    pub(super) fn read() -> Self {
        Self::these(addresses().unwrap_or_default())
    }

    pub(super) fn these(addresses: Vec<IpAddr>) -> Self {
        Self(RwLock::new((addresses, Instant::now())))
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        if self.0.read().1.elapsed() > FRESH {
            self.refresh();
        }
        self.0.read().0.contains(&address)
    }

    fn refresh(&self) {
        let Some(mut known) = self.0.try_write() else { return }; // another thread refreshes them
        known.1 = Instant::now();
        if let Some(addresses) = addresses() {
            known.0 = addresses;
        }
    }
}

/// Reads the addresses of all interfaces. `None` if the system call fails, which is logged.
fn addresses() -> Option<Vec<IpAddr>> {
    let interfaces = getifaddrs().inspect_err(|error| {
        tracing::warn!(%error, "the machine's own addresses cannot be read; tunnels to new ones are not refused");
    });
    let sockets = interfaces.ok()?.filter_map(|interface| interface.address);
    let address = |socket: nix::sys::socket::SockaddrStorage| {
        let v4 = socket.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| socket.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Some(sockets.filter_map(address).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_read_from_the_system_and_read_again() {
        let loopback = "127.0.0.1".parse().unwrap();
        assert!(OwnAddresses::read().contains(loopback));
        let old = OwnAddresses::these(vec![]);
        assert!(!old.contains(loopback), "what was read just now is believed");
        old.0.write().1 = Instant::now().checked_sub(2 * FRESH).unwrap();
        assert!(old.contains(loopback));
    }
}
