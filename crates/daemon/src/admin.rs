//! The admin side of a process: the listener with `/livez`, `/readyz`, `/metrics` and the live page.
//!
//! A process creates one [`ProcessContext`] and shares it with its daemons: they add gates to its readiness and sections to its
//! [live page](live), and [`Admin`] serves them.
//!
//! ```
//! use postern_daemon::admin::{Admin, ProcessContext, catalogue};
//! use postern_telemetry::metrics;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let process = ProcessContext::default();
//! let store = process.readiness.gate("store"); // /readyz answers 503 until it is ready
//! let exporter = metrics::install(&[catalogue::METRICS])?;
//! let admin = Admin::bind(([127, 0, 0, 1], 0).into(), &process, exporter).await?;
//! tokio::spawn(admin.serve());
//! store.set_ready();
//! assert_eq!(process.readiness.reasons(), [""; 0]);
//! # Ok(())
//! # }
//! ```

pub mod catalogue;
mod listener;
pub mod live;
mod process;

pub use listener::Admin;
pub use process::ProcessContext;
