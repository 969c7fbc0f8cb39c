//! Metrics, traces and logs, without a word of what is measured: daemons bring their own names.

pub mod log;
pub mod metrics;
pub mod names;
pub mod traces;
