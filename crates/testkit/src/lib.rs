//! What the tests of several packages start: a real memcached, as a process on a port or socket of its own.
//!
//! ```no_run
//! let server = postern_testkit::memcached::Server::tcp(&["-M"]);
//! let address: String = server.address();
//! ```
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod memcached;
