//! The agent against gateways and issuers that the tests script. One binary, since linking is the slowest part of a test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod batches;
mod consistency;
mod crash;
mod issuers;
mod marks;
mod minting;
mod outage;
mod own_pages;
mod page;
mod places;
mod plain_http;
mod proxy;
mod rotation;
mod spend;
mod support;
