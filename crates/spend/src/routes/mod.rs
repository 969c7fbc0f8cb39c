//! Checks of router configurations for recording spent tokens: mcrouter's ([`judge_mcrouter`]) and twemproxy's
//! ([`judge_twemproxy`]).
//!
//! A router is fit if each key has one owner among its servers, `add` and `get` reach the same owner, and all records of a
//! bucket (`|<digest>|#|<name>`, `memcached::bucket`) have one owner. The checks accept only the few configurations known to be
//! fit and refuse everything else, including a file that the router would not load.
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
//! A file shows neither the router's command-line options nor the servers behind a server that is itself a proxy.

mod finding;
mod mcrouter;
mod twemproxy;

#[cfg(test)]
mod tests;

pub use finding::{Finding, Severity};
pub use mcrouter::judge_mcrouter;
pub use twemproxy::judge_twemproxy;

/// The consequence of several owners for the records of a bucket.
const PARTED: &str = "records of one bucket then lie on several servers, and when one comes back empty, a witness on another \
     admits its spent tokens again";
