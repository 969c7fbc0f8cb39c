//! The join string that a gateway's operator hands out, and the configuration that is written from it.

mod string;
#[cfg(test)]
mod tests;
mod write;

pub use string::{JOIN_LIMIT, Join, JoinError, certificates};
pub use write::{JoinPlace, JoinWriteError, check_join, write_join};
