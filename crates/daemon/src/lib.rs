//! What a daemon needs to run: its state from start to stop, and the listeners and files that it opens.
//!
//! - [`drain`]: the drain and the stop, by [`signals`]. [`readiness`]: what has to be ready before traffic may come. [`reload`]:
//!   SIGHUP, and the configuration file read again. [`exit`]: the exit codes.
//! - [`listen`]: listening sockets. [`descriptors`], [`places`] and [`sources`]: how many connections there may be.
//!   [`proxy_protocol`]: whose they are behind a load balancer. [`rates`]: what one source may do in a second. [`bucket`]: a token
//!   bucket. [`client_stream`] and [`exchange`]: clients that do not read their answers. [`early`]: how HTTP/2 begins. [`answers_only`] and
//!   [`farewell`]: the last answer.
//! - [`tls`]: TLS with a certificate from files or an authority. [`http`]: an HTTP client without surprises, and bodies with a limit.
//!   [`backoff`]: pauses between attempts. [`files`]: private files and the data directory. [`utc`]: times as people read
//!   them. [`seldom`]: log lines that come once in a while at most. [`examination`]: what `postern doctor` finds.
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

pub mod answers_only;
pub mod backoff;
pub mod bucket;
pub mod client_stream;
pub mod descriptors;
pub mod drain;
pub mod early;
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

/// What a daemon's crate returns where its caller only awaits. The body of an `async fn` is compiled in each crate that awaits it, at the
/// level of optimisation there; a boxed one is compiled once, in the crate that made it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
