//! Commands `postern status` and `postern client status`, and their exit codes.

mod agent;
#[cfg(feature = "servers")]
mod machine;

pub(crate) use agent::status as of_agent;
#[cfg(feature = "servers")]
pub(crate) use machine::status as of_machine;

/// Exit code if a daemon runs and is not ready.
const NOT_READY: u8 = 1;
/// Exit code if nothing listens.
const NOT_RUNNING: u8 = 3;
