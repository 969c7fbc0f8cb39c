//! The driver of HTTP/2: many requests and tunnels at once on one connection, each in a task of its own.
//!
//! The `h2` crate reads and writes the frames. hyper would do it too, but it reads a tunnel's data only as fast as its target
//! takes it, keeps the connection's window small, and closes the connection for a CONNECT with a Content-Length.
//!
//! Each stream takes a place of its own, as a connection does, before its request is read: tunnels are bounded by
//! `limits.connections`, however few connections they share.

mod connection;
mod stream;

pub(crate) use connection::serve;
