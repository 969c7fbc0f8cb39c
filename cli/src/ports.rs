//! Chooses the usual port of each listener, or the next free one.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// The usual ports of a machine with servers.
#[cfg(feature = "servers")]
pub(crate) mod usual {
    pub(crate) const CLIENT: u16 = 8118;
    pub(crate) const GATEWAY: u16 = 8080;
    pub(crate) const ISSUER: u16 = 8081;
    /// Of a fleet's second gateway, or of the first hop's gateway.
    pub(crate) const SECOND_GATEWAY: u16 = 8082;
    /// The gateway's. Those of the other daemons follow.
    pub(crate) const ADMIN: u16 = 9090;
}

pub(crate) struct Ports {
    used: Vec<SocketAddr>,
    moved: Vec<(SocketAddr, SocketAddr)>,
}

impl Ports {
    /// Starts from the `given` addresses, which are used even if they are taken.
    pub(crate) fn given(given: impl Iterator<Item = SocketAddr>) -> Self {
        Self { used: given.collect(), moved: Vec::new() }
    }

    /// Returns the given address, or a free one.
    pub(crate) fn one(&mut self, given: Option<SocketAddr>, usual: u16) -> SocketAddr {
        self.row(given, usual, 1)
    }

    /// Returns the first of `count` consecutive ports: the given one, or one from which on all are free.
    pub(crate) fn row(&mut self, given: Option<SocketAddr>, usual: u16, count: u16) -> SocketAddr {
        if let Some(given) = given {
            return given;
        }
        let row = |first: u16| (first..first.saturating_add(count)).map(loopback);
        let is_free =
            |first: &u16| row(*first).all(|at| !self.used.contains(&at) && TcpListener::bind(at).is_ok());
        let found = (usual..u16::MAX - count).find(is_free).unwrap_or(usual);
        self.used.extend(row(found));
        if found != usual {
            self.moved.push((loopback(usual), loopback(found)));
        }
        loopback(found)
    }

    /// Returns a sentence for each taken address, with the address used instead.
    pub(crate) fn moved(&self) -> Vec<String> {
        let sentence = |(usual, chosen): &(SocketAddr, SocketAddr)| {
            format!("{usual} is taken here, or a port that must follow it, so {chosen} is used in its place.")
        };
        self.moved.iter().map(sentence).collect()
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_or_given_is_passed_over() {
        let (taken, first) = loop {
            let taken = TcpListener::bind("127.0.0.1:0").unwrap();
            let first = taken.local_addr().unwrap().port();
            if first < u16::MAX - 100 {
                break (taken, first);
            }
        };
        let given = loopback(first + 1);
        let mut ports = Ports::given([given].into_iter());
        assert_eq!(ports.one(Some(given), first), given);
        let one = ports.one(None, first);
        assert!(one.port() > first + 1, "{one}");
        let row = ports.row(None, one.port(), 3);
        assert!(row.port() > one.port(), "{row}");
        assert_eq!(ports.moved, [(loopback(first), one), (one, row)]);
        drop(taken);
    }
}
