//! Fixtures for the tests of several packages: a real memcached or PostgreSQL on its own port, a disk that loses all unsynced
//! data in a power cut, ports that are free or refuse connections, signals, HTTP/2 frames, a strict HTTP/1.1 parser, test cases
//! for plain HTTP through a proxy, an origin server that records its input, clients of a listener, and a process for a test alone.
//!
//! ```no_run
//! let server = postern_testkit::memcached::Server::tcp(&["-M"]);
//! let address: String = server.address();
//! ```
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod alone;
pub mod clients;
pub mod dialogue;
pub mod forgetful;
pub mod http2;
pub mod memcached;
pub mod origin;
pub mod ports;
pub mod postgres;
pub mod signal;
pub mod strict;
