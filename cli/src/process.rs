//! Setup that the processes of all daemons share: logs, metrics, signals, the admin listener, the drain.

use crate::catalogue::CATALOGUES;
use crate::failure::Failure;
use postern_daemon::admin::{Admin, ProcessContext};
use postern_daemon::descriptors::Descriptors;
use postern_daemon::readiness::Gate;
use postern_daemon::systemd::{self, Pulse};
use postern_telemetry::log::{self, LogFormat};
use postern_telemetry::metrics;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tracing::Level;

pub(crate) struct Process {
    pub(crate) context: ProcessContext,
    /// The address of the admin listener, with the real port in place of 0.
    pub(crate) admin: SocketAddr,
    /// Gate that opens when the daemons run, because the admin listener answers before the daemons have added their gates.
    start: Gate,
}

impl Process {
    /// Starts logs, metrics, signal handling and the admin listener. `daemons` is the number of daemons in the process.
    pub(crate) async fn start(format: LogFormat, admin: SocketAddr, daemons: usize) -> Result<Self, Failure> {
        log::init(format).map_err(Failure::configuration)?;
        let exporter = metrics::install(CATALOGUES).map_err(Failure::runtime)?;
        let (descriptors, pulse) = (Descriptors::raise(daemons), Pulse::of_process());
        let context = ProcessContext { descriptors, pulse, ..ProcessContext::default() };
        context
            .shutdown
            .on_signals()
            .map_err(|error| Failure::runtime(format_args!("cannot handle signals: {error}")))?;
        let start = context.readiness.gate("start");
        let listener = Admin::bind(admin, &context, exporter).await.map_err(Failure::runtime)?;
        let admin = listener.local_addr();
        let started = context.live.start(context.readiness.clone(), context.shutdown.clone());
        started.map_err(Failure::runtime)?;
        tokio::spawn(listener.serve());
        Ok(Self { context, admin, start })
    }

    /// Reports to systemd if systemd has started this process. `listening` completes when the daemon accepts clients.
    pub(crate) fn report_to_systemd(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let ProcessContext { readiness, pulse, shutdown, .. } = self.context.clone();
        tokio::spawn(pulse.clone().beat());
        tokio::spawn(systemd::report(listening, readiness, pulse, shutdown));
    }

    /// Runs `serving`, the daemons, until they have drained: all tracked work is done, or `deadline` has passed; then waits for
    /// `serving`, which ends on its own. If `serving` ends before that, the process ends with its result. `report` gets the
    /// progress of the drain.
    pub(crate) async fn run(
        &self,
        serving: impl Future<Output = io::Result<()>> + Send + 'static,
        deadline: Duration,
        report: impl FnMut(Level, &str),
    ) -> Result<(), Failure> {
        let mut serving = tokio::spawn(serving);
        self.start.set_ready();
        let served = tokio::select! {
            biased; // `serving` may have ended when the end of the drain is to be reported
            _ = self.context.shutdown.wait_reporting(deadline, report) => served(serving.await),
            ended = &mut serving => served(ended),
        };
        log::finish();
        served
    }
}

/// Logs the progress of a drain.
pub(crate) fn log_drain(level: Level, text: &str) {
    match level {
        Level::WARN => tracing::warn!("{text}"),
        _ => tracing::info!("{text}"),
    }
}

fn served(ended: Result<io::Result<()>, tokio::task::JoinError>) -> Result<(), Failure> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::runtime(error)),
        Err(error) => Err(Failure::runtime(format_args!("a daemon ended unexpectedly: {error}"))),
    }
}
