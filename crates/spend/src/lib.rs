//! The double-spend store records spent tokens, so that each token is spent at most once.
//!
//! [`SpendStore`] is the contract, [`Embedded`] the store for one process, [`memcached`] the store for a fleet,
//! [`Backend`] and [`Store`] the choice a configuration makes, [`conformance`] the suite that every store must pass, and
//! [`routes`] the check of a router's configuration. `docs/how-it-works/spend-contract.md` has the contract on a page, with
//! the sizes and the durability that were measured.
//!
//! The crate records no metrics, and no verdict hangs on a clock read here: time is an argument, outcomes are returned,
//! and an [`ExchangeLog`] records what a call waited for. It writes digests ([`SpentKey`](postern_token::SpentKey)) and
//! never a byte of a token.

mod binding;
pub mod conformance;
mod contract;
mod embedded;
mod exchange_log;
pub mod memcached;
pub mod routes;
mod store;

pub use binding::{Binding, Marks};
pub use contract::{Epoch, Hint, Spend, SpendStore, Unknown};
pub use embedded::{Embedded, Fsync, Stats, StoreError};
pub use exchange_log::{Exchange, ExchangeLog, Stall, TcpFacts};
pub use store::{Backend, Store};
