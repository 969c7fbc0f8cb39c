#![allow(clippy::unwrap_used, reason = "a test may panic")]
//! The gateway over real sockets, byte by byte. One binary for all themes: linking is the slowest part of a test.

#[path = "../support/mod.rs"]
mod support;

mod aborted;
mod absolute;
mod backlog;
mod chains;
mod drain;
mod egress;
mod header;
mod http2;
mod keys;
mod next_hop;
mod peers;
mod pipeline;
mod places;
mod proxy_protocol;
mod rates;
mod replay;
mod shared;
mod shared_limits;
mod smuggling;
mod status;
mod telemetry;
mod tls;
mod token;
mod tunnel;
mod udp;
mod udp_attacks;
mod udp_hops;
mod udp_requests;
mod udp_sizes;
mod unread;
