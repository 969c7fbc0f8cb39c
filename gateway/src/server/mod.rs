//! From a listening socket to requests: accepting, limits on connections, and the driver of each HTTP version.

pub(crate) mod accept;
mod connection;
mod h1;
mod h2;
pub(crate) mod sockets;

use crate::request::peer::Peer;
use crate::request::session::Client;
use postern_daemon::exchange::Exchange;
use postern_daemon::places::Place;
use std::net::SocketAddr;

/// A client's connection, beside its stream.
pub(crate) struct Visitor {
    /// Its address, where the access log names it.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) place: Place,
    pub(crate) exchange: Exchange,
    /// It is another gateway of the operator's.
    pub(crate) peer: Option<Peer>,
}

impl Visitor {
    /// Whom its requests come from.
    pub(crate) fn client(&self) -> Client {
        Client { address: self.client, source: self.place.source(), peer: self.peer }
    }
}
