//! The issuer's keys: the keyring, its sources, and the keys' lifetimes.

pub(crate) mod keyring;
pub(crate) mod offer;
pub(crate) mod refresh;
pub(crate) mod saved;
pub(crate) mod secrets;
pub(crate) mod source;
