//! Signals.

use super::StopSignal;
use std::future::pending;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, which do not end the process from here on.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Listens from now on. Call it inside a runtime, and read them there.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            () = received(&mut self.interrupt) => StopSignal::Interrupt,
            () = received(&mut self.terminate) => StopSignal::Terminate,
        }
    }
}

/// SIGHUP, which does not end the process from here on.
#[derive(Debug)]
pub struct ReloadSignals(Signal);

impl ReloadSignals {
    /// As [`StopSignals::new`].
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Completes with the next one. Cancel safe.
    pub async fn next(&mut self) {
        received(&mut self.0).await;
    }
}

/// A closed signal stream never delivers again, so it must not be polled in a loop.
async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        pending().await
    }
}
