//! Metrics, traces and logs. Daemons declare the names of what they measure.
//!
//! A daemon declares its metrics next to the code that records them ([`catalogue!`], [`label!`]; [`names!`] for spans) and
//! records through the `metrics` crate. The process installs all catalogues once.
//!
//! ```
//! postern_telemetry::label! {
//!     /// How a request ended.
//!     pub Outcome = "outcome" {
//!         /// It was answered.
//!         Answered = "answered",
//!         /// It was refused.
//!         Refused = "refused",
//!     }
//! }
//!
//! postern_telemetry::catalogue! {
//!     /// Every metric of this daemon.
//!     pub METRICS;
//!
//!     /// Requests, by how they ended.
//!     REQUESTS: Counter = "postern_example_requests_total" [Outcome::SPEC];
//! }
//!
//! let exporter = postern_telemetry::metrics::install(&[METRICS])?;
//! metrics::counter!(REQUESTS, Outcome::LABEL => Outcome::Answered.as_str()).increment(1);
//! assert!(exporter.render().contains("postern_example_requests_total{outcome=\"answered\"} 1"));
//! # Ok::<(), postern_telemetry::metrics::MetricsError>(())
//! ```

pub mod catalogue;
pub mod log;
pub mod metrics;
pub mod own;
pub mod traces;
