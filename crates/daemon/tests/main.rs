//! TLS, signals and the admin listener over real sockets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod admin;
mod mutual_tls;
mod pipelined;
mod signals;
mod tls;
mod tls_diagnosis;
