//! The admin side of a process: the listener with `/livez`, `/readyz`, `/metrics`, and the live page on it.
//!
//! A process makes one [`Host`] and lends it to its daemons: they add gates to its readiness and sections to its
//! [live page](live), and [`Admin`] shows them.
//!
//! ```
//! use postern_admin::{Admin, Host, catalogue};
//! use postern_telemetry::metrics;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::default();
//! let store = host.readiness.gate("store"); // /readyz answers 503 until it is ready
//! let exporter = metrics::install(&[catalogue::METRICS])?;
//! let admin = Admin::bind(([127, 0, 0, 1], 0).into(), &host, exporter).await?;
//! tokio::spawn(admin.serve());
//! store.set_ready();
//! assert_eq!(host.readiness.reasons(), [""; 0]);
//! # Ok(())
//! # }
//! ```

pub mod catalogue;
mod host;
mod listener;
pub mod live;

pub use host::Host;
pub use listener::Admin;
