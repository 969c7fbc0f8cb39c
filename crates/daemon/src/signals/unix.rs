use super::StopSignal;
use std::future::pending;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, which no longer end the process.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Installs the handlers. Call it inside a runtime, and await the signals there.
    pub fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn next(&mut self) -> StopSignal {
        tokio::select! {
            () = received(&mut self.interrupt) => StopSignal::Interrupt,
            () = received(&mut self.terminate) => StopSignal::Terminate,
        }
    }
}

/// SIGHUP, which no longer ends the process.
#[derive(Debug)]
pub struct ReloadSignals(Signal);

impl ReloadSignals {
    /// Installs the handler, as [`StopSignals::new`] does.
    pub fn new() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Completes on the next signal. Cancel safe.
    pub async fn next(&mut self) {
        received(&mut self.0).await;
    }
}

/// Waits for a signal. Never completes on a closed stream, which would complete on each poll and make a loop busy.
async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        pending().await
    }
}
