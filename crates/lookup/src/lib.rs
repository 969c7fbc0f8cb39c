//! From a name to a connection: the one way for tunnels, for the agent, for polls of an issuer and for the store. The two families
//! of addresses are two questions ([`Families`]), and the first useful answer is dialled without waiting for the other ([`dial`]).
//!
//! [`Lookup`] asks the system's resolver, which a machine's operator configures for all programs: it is for the hosts of our own
//! configurations. Who resolves what strangers name has to be bounded, and brings answers of its own.

pub mod dial;
mod families;
mod shared;
mod system;

pub use families::{Families, RESOLUTION_DELAY};
pub use system::{Lookup, Lookups};
