//! Observability: metrics, traces, the access log and the live page.

pub mod catalogue;
pub mod labels;
pub(crate) mod page;
pub(crate) mod recorder;
pub mod spans;
pub(crate) mod timeline;
