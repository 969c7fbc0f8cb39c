//! The `postern` binary across processes: real daemons, a real memcached, foreign programs. A module for each theme, in one
//! binary, since linking is the slowest part of a test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unreachable_pub, reason = "the modules of a test are its own")]

mod accounts;
mod acme;
mod agent;
mod associations;
/// The binary's catalogue: it has no library that a test could use.
#[path = "../cli/src/catalogue.rs"]
mod catalogue;
mod clients;
mod configuration;
mod deployment;
mod docs;
mod doctor;
mod drain;
mod encrypted_keys;
mod exactly_once;
mod exemplars;
mod fleet;
mod getting_started;
mod guides;
mod hostile_http2;
mod hsm;
mod http_udp;
mod init;
mod issuer;
mod jaeger;
mod join;
mod local_fleet;
mod mint;
mod monitoring;
mod month;
mod mutual_tls;
mod name_servers;
mod next_hops;
mod outage;
mod privacy;
mod prometheus;
mod reload;
mod reload_agent;
mod reload_groups;
mod reload_listener;
mod rotation;
mod self_signed;
mod shared_connections;
mod smuggling;
mod socks_udp;
mod status;
mod stdio;
mod store_memory;
mod store_outage;
mod support;
mod system_calls;
mod systemd;
mod token_types;
mod two_hops;
mod udp_floods;
mod unauthenticated;
mod up;
