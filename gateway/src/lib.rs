//! The gateway: a forward proxy that admits a request for one Privacy Pass token, and records the token as spent.
//!
//! [`Gateway`] runs a gateway from its [`Config`] to its last connection. Four folders, next to the files that start and
//! maintain the daemon:
//!
//! - `request`: the life of a request. `session` shows it on one screen; each stage is the file of its name, and `deny` selects
//!   every status.
//! - `server`: accepting connections, limits, the driver of each HTTP version.
//! - `keys`: the keyring, and the sources of keys.
//! - `observe`: metrics, traces, the access log, the live page.

#[doc(hidden)]
pub mod bench;
pub mod config;
mod error;
mod examine;
mod gate;
mod gateway;
mod health;
mod keys;
mod maintenance;
mod memories;
mod next_hops;
mod observe;
mod reload;
mod request;
mod server;
mod settings;
mod start;
mod state;

pub use config::Config;
pub use error::StartError;
pub use examine::{certificates, examine};
pub use gateway::Gateway;
pub use observe::{catalogue, labels, spans};
pub use postern_proxy::target::{Target, TargetError};
pub use reload::FIXED;
pub use request::egress::explain::{End, Explanation, explain};
pub use settings::check;
