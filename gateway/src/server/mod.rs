//! Listening sockets, limits on connections, and the driver of each HTTP version.

pub(crate) mod accept;
mod connection;
mod h2;
