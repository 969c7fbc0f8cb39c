//! What an operator sees of the gateway: metrics, traces, the access log, the live page.

pub(crate) mod page;
pub(crate) mod recorder;
pub(crate) mod store_metrics;
pub(crate) mod timeline;
