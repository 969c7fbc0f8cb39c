//! The gateway: a forward proxy that lets a request through for one Privacy Pass token, and remembers the token.
//!
//! `session` has the life of a request on one screen; each stage is the file of its name. `deny` chooses every status.

mod accept;
mod answer;
mod backend;
#[doc(hidden)]
pub mod bench;
mod check;
mod clock;
pub mod config;
mod connection;
mod deny;
mod dial;
mod egress;
mod forward;
mod gateway;
mod health;
mod keyring;
mod page;
mod parse;
mod recorder;
mod refresh;
mod reload;
mod resolve;
mod saved;
mod session;
mod source;
mod spend;
mod start;
mod store_metrics;
mod target;
mod timeline;
mod tunnel;
mod unsaid;
mod upkeep;
mod verify;

pub use backend::BackendError;
pub use config::Config;
pub use gateway::{Gateway, StartError, check};
pub use resolve::ResolverError;
pub use source::SourceError;
