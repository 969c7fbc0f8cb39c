//! The local agent: programs point a proxy setting at it, and every tunnel they open is paid for with one token.
//!
//! ```text
//! accept -> HTTP or SOCKS5 -> dial the gateway -> take a token off the disk -> CONNECT -> relay
//!                                                     ^
//!               wallet <- mint <- challenge: refill, in the background
//! ```
//!
//! [`Agent`] is the daemon. [`mint`] is what it shares with `postern token mint`. A token is never sent twice:
//! [`Agent`] takes it off the disk before it is sent, and replaces one that was refused by another, once a tunnel.
//! `recorder` has the counts, and `page` shows them. No destination, no token and no client's
//! address goes to a log, a metric or a file.

mod agent;
mod answer;
mod body;
pub mod catalogue;
mod challenge;
mod clock;
pub mod compare;
mod config;
mod connections;
mod consistency;
#[cfg(unix)]
mod examine;
mod forward;
mod gateway;
mod gateways;
mod hop;
mod http_proxy;
mod issuers;
pub mod join;
mod marks;
pub mod mint;
mod minting_status;
mod own_pages;
mod page;
mod recorder;
mod refill;
mod reload;
mod saved_challenges;
mod sentence;
mod socks;
mod start;
mod state;
pub mod status;
mod stock;
mod supply;
mod thrift;
mod token_guard;
mod token_source;
mod tunnel;
mod wallet;

/// The agent's rules without I/O: what is known of a gateway's marks and health, and how many tokens are minted. A simulation
/// of agents runs them, too.
pub mod rules {
    pub use crate::challenge::CurrentChallenge;
    pub use crate::gateways::{Health, Outage, OutageKind, PATIENCE};
    pub use crate::marks::{Marks, MarksRefused, Trial};
    pub use crate::stock::Stock;
    pub use crate::tunnel::OLDER_TOKENS;
}

pub use agent::Agent;
pub use clock::Skew;
pub use config::{
    Config, ConfigProblem, ConsistencyConfig, FirstHop, GatewayConfig, IssuerConfig, Listen, Urls,
    WalletConfig, api_key_of,
};
#[cfg(unix)]
pub use examine::{certificates, examine};
pub use gateway::{DialError, GatewayUrlError};
pub use reload::FIXED;
pub use sentence::full_stop;
pub use start::{StartError, check};
pub use wallet::{KeyTokens, WalletError, wallet_by_key};
