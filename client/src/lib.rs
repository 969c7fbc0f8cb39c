//! The local agent: an HTTP and SOCKS5 proxy for programs, which pays for each tunnel with one token.
//!
//! ```text
//! program -> front: HTTP or SOCKS5 -> hop: choose and dial a gateway -> wallet: take a token -> hop: CONNECT -> relay
//!                                                                         ^
//!                          mint: issuer's directory -> key -> tokens, in the background
//! ```
//!
//! Dependencies run one way: `front` to `hop` to `wallet`, and [`mint`] to `hop` and `wallet`. [`Agent`] assembles them, and
//! `reload` changes a running agent. A token is never sent twice: it is removed from the disk before it is sent, and a refused
//! token is replaced once per tunnel (tokens of older marks not counted). `recorder` keeps the counts that [`status`] shows. No
//! destination, token or client address goes to a log, a metric or a file.

mod agent;
pub mod catalogue;
mod config;
#[cfg(unix)]
mod examine;
mod front;
mod hop;
pub mod join;
pub mod mint;
mod recorder;
mod reload;
mod sentence;
mod settings;
pub mod status;
mod wallet;

/// The agent's rules without I/O, which a simulation of agents runs as well: marks and health of a gateway, and the number of
/// tokens to mint.
pub mod rules {
    pub use crate::hop::gateways::PATIENCE;
    pub use crate::hop::health::{Health, Outage};
    pub use crate::hop::marks::{Marks, MarksRefused, Trial};
    pub use crate::hop::tunnel::OLDER_TOKENS;
    pub use crate::mint::refill::Stock;
    pub use crate::wallet::challenge::CurrentChallenge;
}

pub use agent::Agent;
pub use config::{
    Config, ConfigProblem, ConsistencyConfig, FirstHop, GatewayConfig, IssuerConfig, Listen, Urls,
    WalletConfig, api_key_of,
};
#[cfg(unix)]
pub use examine::{certificates, examine};
pub use hop::connection::{ChallengeFetchError, fetch_challenge};
pub use hop::gateway::GatewayUrlError;
pub use mint::compare;
pub use reload::FIXED;
pub use sentence::full_stop;
pub use settings::{StartError, check};
pub use wallet::file::{KeyTokens, WalletError, wallet_by_key};
