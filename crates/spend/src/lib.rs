//! The double-spend store: records spent tokens so that each token is spent at most once.
//!
//! [`SpendStore`] is the contract, [`Embedded`] the store for one process, [`memcached`] the store for a fleet, [`Backend`] and
//! [`Store`] the store that a configuration selects, and [`routes`] the check of a router's configuration.
//! `docs/how-it-works/spend-contract.md` summarizes the contract on one page, with measured sizes and durability.
//!
//! The crate records no metrics, and no verdict depends on a clock read here: callers pass the time and receive the outcomes,
//! and an [`ExchangeLog`] records where a call spent its time. The store writes digests ([`SpentKey`](postern_token::SpentKey)),
//! never a byte of a token.

mod contract;
mod embedded;
mod exchange_log;
pub mod memcached;
pub mod routes;
mod store;

pub use contract::{Epoch, Hint, Marks, Spend, SpendStore, Unknown};
pub use embedded::{Embedded, Fsync, Stats, StoreError};
pub use exchange_log::{Exchange, ExchangeLog, Stall, TcpFacts};
pub use store::{Backend, Store};
