//! Runtime of a daemon: lifecycle, listeners, TLS and files.
//!
//! - [`drain`]: drain and stop, triggered by [`signals`]. [`readiness`]: conditions for traffic. [`reload`]: SIGHUP, and the
//!   configuration file read again. [`systemd`]: reports to systemd. [`exit`]: exit codes.
//! - [`listen`]: listening sockets. [`descriptors`], [`places`] and [`sources`]: limits on connections. [`proxy_protocol`]:
//!   client addresses behind a load balancer. [`rates`]: rate limits per source. [`bucket`]: a token bucket. [`fair_queue`] and
//!   [`turns`]: fair scheduling. [`client_stream`] and [`exchange`]: clients that do not read their answers. [`farewell`]: the last
//!   answer on a connection. [`serve`]: one way for all listeners to use these.
//! - [`tls`]: TLS with a certificate from files or by ACME. [`http`]: an HTTP client with strict defaults, and size-limited
//!   bodies. [`backoff`]: pauses between attempts. [`files`]: private files and the data directory. [`utc`]: human-readable
//!   times. [`seldom`]: rate-limited log lines. [`examination`]: findings of `postern doctor`. [`admin`]: the admin listener and
//!   the live page.
//!
//! ```
//! use postern_daemon::drain::{Drained, Shutdown};
//! use std::time::Duration;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let shutdown = Shutdown::new(); // a daemon calls `on_signals` on it
//! let work = shutdown.clone();
//! shutdown.tracker().spawn(async move { work.draining().await });
//! shutdown.drain();
//! assert_eq!(shutdown.wait(Duration::from_secs(5)).await, Drained::Finished);
//! # });
//! ```

#[macro_use]
mod write_through;

pub mod admin;
pub mod backoff;
pub mod bucket;
pub mod client_stream;
pub mod descriptors;
pub mod drain;
pub mod examination;
pub mod exchange;
pub mod exit;
pub mod fair_queue;
pub mod farewell;
pub mod files;
pub mod http;
pub mod listen;
pub mod places;
pub mod proxy_protocol;
pub mod rates;
pub mod readiness;
pub mod reload;
pub mod seldom;
pub mod serve;
pub mod signals;
pub mod sources;
#[cfg(unix)]
pub mod systemd;
#[cfg(windows)]
#[path = "no_systemd.rs"]
pub mod systemd;
pub mod tls;
pub mod turns;
pub mod utc;

use std::pin::Pin;

/// Future returned to a caller in another crate that only awaits it. The body of an `async fn` is compiled in each crate that
/// awaits it, at that crate's optimisation level; a boxed future is compiled once, in the crate that creates it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
