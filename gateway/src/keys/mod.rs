//! The issuer's keys: the keyring that tokens are checked against, where keys come from, and how long they are trusted.

pub(crate) mod clock;
pub(crate) mod keyring;
pub(crate) mod offer;
pub(crate) mod refresh;
pub(crate) mod saved;
pub(crate) mod secrets;
pub(crate) mod source;
