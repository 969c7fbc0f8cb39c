//! From a listening socket to requests: accepting, limits on connections, and the driver of each HTTP version.

pub(crate) mod accept;
pub(crate) mod connection;
mod h1;
mod h2;
pub(crate) mod sockets;
