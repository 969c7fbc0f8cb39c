//! The way to a gateway. `tunnel` pays for a tunnel with a token at the gateway that `gateways` chooses.

pub(crate) mod connection;
pub(crate) mod fetch_challenge;
pub(crate) mod gateway;
pub(crate) mod gateways;
pub(crate) mod health;
pub(crate) mod limits;
pub(crate) mod marks;
pub(crate) mod tunnel;
