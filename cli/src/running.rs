//! What a running process says of itself at its admin listener.

#[cfg_attr(not(feature = "servers"), allow(dead_code, reason = "`postern client status` needs a part of it"))]
pub(crate) mod admin;
#[cfg(feature = "servers")]
pub(crate) mod links;
