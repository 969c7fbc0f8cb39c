//! What the tests of several packages need: a real memcached, as a process on a port or socket of its own, a disk that
//! forgets at a power cut what was not synced, ports that are free or refuse, frames of HTTP/2,
//! a strict reader of HTTP/1.1, what a proxy owes plain HTTP, and an origin server that keeps what it gets.
//!
//! ```no_run
//! let server = postern_testkit::memcached::Server::tcp(&["-M"]);
//! let address: String = server.address();
//! ```
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod dialogue;
pub mod forgetful;
pub mod http2;
pub mod memcached;
pub mod origin;
pub mod ports;
pub mod signal;
pub mod strict;
