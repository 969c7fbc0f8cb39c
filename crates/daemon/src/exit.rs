//! The exit codes of every `postern` command. Service files and scripts rely on them.

/// A normal end: SIGTERM, SIGINT, or a command that finished.
pub const STOPPED: u8 = 0;
pub const USAGE: u8 = 2;
/// The configuration was wrong: restarting does not help until it is edited.
pub const CONFIG: u8 = 64;
/// Something failed at run time: a port in use, a data directory in use, a disk that cannot be written.
pub const RUNTIME: u8 = 70;
