//! The double-spend store: the memory that lets a token be spent once.
//!
//! [`SpendStore`] is the contract, [`Embedded`] the store for one process, [`memcached`] the store for a fleet,
//! [`Backend`] and [`Store`] the choice a configuration makes, and [`conformance`] the suite that every store must pass. `docs/spend-contract.md` has the contract on a page,
//! with the sizes and the durability that were measured.
//!
//! The crate records no metrics, and a spend reads no clock: time is an argument, outcomes are returned. It writes digests
//! ([`SpentKey`](postern_token::SpentKey)) and never a byte of a token.

pub mod conformance;
mod contract;
mod embedded;
pub mod mcrouter;
pub mod memcached;
mod store;

pub use contract::{Epoch, Seen, Spend, SpendStore, Unknown, Waits};
pub use embedded::{Embedded, Fsync, Stats, StoreError};
pub use store::{Backend, Store};
