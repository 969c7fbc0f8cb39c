//! The local agent: programs point a proxy setting at it, and every tunnel they open is paid for with one token.
//!
//! ```text
//! program -> front: HTTP or SOCKS5 -> hop: choose and dial a gateway -> wallet: take a token -> hop: CONNECT -> relay
//!                                                                         ^
//!                          mint: issuer's directory -> key -> tokens, in the background
//! ```
//!
//! Four rooms, and arrows between them run one way: `front` to `hop` to `wallet`, and [`mint`] to `hop` and `wallet`.
//! [`Agent`] puts them together, and `reload` changes what runs. A token is never sent twice: it is off the disk before it is
//! sent, and a refused one is replaced by another, once a tunnel. `recorder` has the counts, and [`status`] shows them. No
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
mod start;
pub mod status;
mod wallet;

/// The agent's rules without I/O: what is known of a gateway's marks and health, and how many tokens are minted. A simulation
/// of agents runs them, too.
pub mod rules {
    pub use crate::hop::gateways::PATIENCE;
    pub use crate::hop::health::{Health, Outage, OutageKind};
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
pub use hop::fetch_challenge::{ChallengeFetchError, fetch_challenge};
pub use hop::gateway::{DialError, GatewayUrlError};
pub use mint::compare;
pub use reload::FIXED;
pub use sentence::full_stop;
pub use start::{StartError, check};
pub use wallet::clock::Skew;
pub use wallet::file::{KeyTokens, WalletError, wallet_by_key};
