//! Whether the configuration of a router is fit to record spent tokens: mcrouter's ([`judge_mcrouter`]) and twemproxy's
//! ([`judge_twemproxy`]).
//!
//! A router is fit if each key has one owner among its servers, `add` and `get` agree about it, and all records of a bucket
//! (`|<digest>|#|<name>`, `memcached::bucket`) have the same one. Few configurations are known to be so, and these are
//! listed here: whatever else stands in a file is refused. So is a file that the router would not load.
//! ```
//! use postern_spend::routes::{Severity, judge_mcrouter};
//!
//! let failover = r#"{
//!     "pools": { "a": { "servers": ["10.0.0.1:11211"] }, "b": { "servers": ["10.0.0.2:11211"] } },
//!     "route": { "type": "FailoverRoute", "children": ["PoolRoute|a", "PoolRoute|b"] }
//! }"#;
//! let findings = judge_mcrouter(failover, None);
//! assert_eq!(findings[0].severity, Severity::Refuse);
//! ```
//!
//! A file does not show which options the router is started with, nor what stands behind a server that is itself a proxy.

mod finding;
mod mcrouter;
mod twemproxy;

#[cfg(test)]
mod tests;

pub use finding::{Finding, Severity};
pub use mcrouter::judge_mcrouter;
pub use twemproxy::judge_twemproxy;

/// The longest text that is read. Configurations that people write are a thousand times smaller.
const LONGEST_TEXT: usize = 4 << 20;

/// What follows when the records of a bucket have several owners.
const PARTED: &str = "records of one bucket then lie on several servers, and when one comes back empty, a witness on another \
     admits its spent tokens again";
