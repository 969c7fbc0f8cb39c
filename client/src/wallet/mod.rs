//! The tokens, and the challenge that they answer. `supply` hands tokens out, `guard` tracks each one until it is sent, and
//! `file` stores them on the disk.

pub(crate) mod beside;
pub(crate) mod challenge;
pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod format;
pub(crate) mod guard;
pub(crate) mod supply;
