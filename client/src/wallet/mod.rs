//! The tokens and the challenge that they answer. `supply` gives them out, `guard` follows each until it is sent, and `file` keeps
//! them on the disk.

pub(crate) mod beside;
pub(crate) mod challenge;
pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod guard;
pub(crate) mod supply;
