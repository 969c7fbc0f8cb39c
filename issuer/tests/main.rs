//! The issuer over HTTP. One binary, since linking is the slowest part of a test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod batch;
mod http2;
mod issuance;
mod life;
mod openapi;
mod page;
mod places;
mod proxy_protocol;
mod rates;
mod support;
mod unread;
