//! The path to a gateway. `tunnel` opens tunnels: `gateways` chooses a gateway by its `health`; `gateway` and `connection` dial
//! it and send the token. `marks` decides which tokens a gateway is sent, and for which challenges more are signed.

pub(crate) mod connection;
pub(crate) mod gateway;
pub(crate) mod gateways;
pub(crate) mod health;
pub(crate) mod limits;
pub(crate) mod marks;
pub(crate) mod tunnel;
