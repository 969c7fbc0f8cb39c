//! What every daemon's process has: logs, metrics, signals, the admin listener, a drain.

use crate::catalogue::CATALOGUES;
use crate::failure::Failure;
use postern_admin::{Admin, ProcessContext};
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

/// The process around one or several daemons.
pub(crate) struct Process {
    /// What the daemons share.
    pub(crate) context: ProcessContext,
    /// The address of the admin listener, if there is one, with the real port in place of 0.
    pub(crate) admin: Option<SocketAddr>,
    /// Not ready until the daemons run: the admin listener answers before they have added their gates.
    start: Gate,
}

impl Process {
    /// Starts logs, metrics, signal handling and, where there is an address for it, the admin listener, for this number of
    /// daemons.
    pub(crate) async fn start(
        format: LogFormat,
        admin: Option<SocketAddr>,
        daemons: usize,
    ) -> Result<Self, Failure> {
        log::init(format).map_err(Failure::configuration)?;
        let exporter = metrics::install(CATALOGUES).map_err(Failure::runtime)?;
        let (descriptors, pulse) = (Descriptors::raise(daemons), Pulse::of_process());
        let context = ProcessContext { descriptors, pulse, ..ProcessContext::default() };
        context
            .shutdown
            .on_signals()
            .map_err(|error| Failure::runtime(format_args!("cannot handle signals: {error}")))?;
        let start = context.readiness.gate("start");
        let admin = match admin {
            Some(address) => {
                let admin = Admin::bind(address, &context, exporter).await.map_err(Failure::runtime)?;
                let local = admin.local_addr();
                let watched = context.live.start(context.readiness.clone(), context.shutdown.clone());
                watched.map_err(Failure::runtime)?;
                tokio::spawn(admin.serve());
                Some(local)
            }
            None => None,
        };
        Ok(Self { context, admin, start })
    }

    /// Reports to systemd, where that has started this process. `listening` completes when its daemon takes clients.
    pub(crate) fn report_to_systemd(&self, listening: impl Future<Output = ()> + Send + 'static) {
        let ProcessContext { readiness, pulse, shutdown, .. } = self.context.clone();
        tokio::spawn(pulse.clone().beat());
        tokio::spawn(systemd::report(listening, readiness, pulse, shutdown));
    }

    /// Runs until the daemons have drained: all tracked work done, or `deadline` past. `serving` is the daemons; when
    /// it ends with an error before the drain, so does the process. Logs the progress of the drain.
    pub(crate) async fn run<F>(&self, serving: F, deadline: Duration) -> Result<(), Failure>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let report = |level, text: &str| match level {
            Level::WARN => tracing::warn!("{text}"),
            _ => tracing::info!("{text}"),
        };
        self.run_reporting(serving, deadline, report).await
    }

    /// As [`Process::run`]; `report` is called with the progress of the drain.
    pub(crate) async fn run_reporting<F, T>(
        &self,
        serving: F,
        deadline: Duration,
        report: T,
    ) -> Result<(), Failure>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
        T: FnMut(Level, &str),
    {
        let mut serving = tokio::spawn(serving);
        self.start.set_ready();
        tokio::select! {
            ended = &mut serving => return served(ended),
            _ = self.context.shutdown.wait_reporting(deadline, report) => {}
        }
        let served = served(serving.await);
        log::finish();
        served
    }
}

fn served(ended: Result<io::Result<()>, tokio::task::JoinError>) -> Result<(), Failure> {
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::runtime(error)),
        Err(error) => Err(Failure::runtime(format_args!("a daemon ended unexpectedly: {error}"))),
    }
}
