//! Name resolution and connections, for tunnels, the agent, polls of an issuer and the store. The two families of addresses are
//! two queries ([`Families`]), and the first useful answer is dialled without waiting for the other ([`dial`]).
//!
//! [`Lookup`] uses the system's resolver, which a machine's operator configures for all programs: it is for the hosts of our own
//! configurations. A resolver for names that strangers choose must be bounded, and passes its own answers to [`Families`].
//! [`tcp_info()`] is what the kernel knows of a connection.

pub mod dial;
mod families;
mod system;
mod tcp_info;

pub use families::{Families, RESOLUTION_DELAY};
pub use system::{Lookup, Lookups};
pub use tcp_info::{TcpFacts, tcp_info};
