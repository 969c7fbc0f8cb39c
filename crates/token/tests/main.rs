//! Tokens from outside the crate. One binary, since linking is the slowest part of a test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod agreement;
mod allocations;
mod authenticate;
mod authorization;
mod inspect;
mod keys;
mod known;
mod life;
mod private;
mod properties;
mod vectors;
