//! The admin side of a process: the listener with `/livez`, `/readyz`, `/metrics`, and the live page on it.
//!
//! A process makes one [`Host`] and lends it to its daemons: they add gates to its readiness and sections to its
//! [live page](live), and [`Admin`] shows them.

pub mod catalogue;
mod host;
mod listener;
pub mod live;

pub use host::Host;
pub use listener::Admin;
