//! Commands `postern gateway`, `postern issuer` and `postern client`: one daemon each, from a configuration file.

#[cfg(feature = "servers")]
mod servers;

#[cfg(feature = "servers")]
pub(crate) use servers::{gateway, issuer};

use crate::failure::Failure;
use crate::process::{Process, log_drain};
use postern_client::Agent;
use postern_config::Environment;
use postern_daemon::drain::Shutdown;
use postern_daemon::listen::handed;
use postern_telemetry::log::LogFormat;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

pub(crate) async fn client(path: &Path) -> Result<(), Failure> {
    let (config, file) = postern_config::open::<postern_client::Config>(path, environment())?;
    let (admin, deadline) = (config.listen.admin, config.drain.deadline.get());
    let process = start(config.log.format, admin, file.warnings()).await?;
    let agent = Agent::bind(config, &process.context).await?.reloading(file);
    tracing::info!("the agent listens on {}", agent.local_addr());
    warn_of_unclaimed();
    process.report_to_systemd(ready(()));
    let serving = until_stopped(agent.run(), process.context.shutdown.clone());
    process.run(serving, deadline, log_drain).await
}

/// Runs a daemon until the drain is over: it ends before, and an end of `serving` would end the process.
async fn until_stopped(running: impl Future<Output = ()>, shutdown: Shutdown) -> io::Result<()> {
    running.await;
    shutdown.stopped().await;
    Ok(())
}

/// Warns of sockets from systemd whose address is not in the configuration.
fn warn_of_unclaimed() {
    for address in handed::unclaimed() {
        tracing::warn!(
            "systemd handed over a socket that listens on {address}, and nothing here does: clients that connect there wait in vain. \
             Write the same address as ListenStream= of the socket unit and in [listen] of the configuration"
        );
    }
}

/// Returns this process's environment. The variables of all three daemons are known, because one environment may serve all of
/// them.
pub(crate) fn environment() -> Environment {
    let known = [
        #[cfg(feature = "servers")]
        postern_config::variables::<postern_gateway::Config>(),
        #[cfg(feature = "servers")]
        postern_config::variables::<postern_issuer::Config>(),
        postern_config::variables::<postern_client::Config>(),
    ];
    Environment::of_process(known.concat())
}

/// Starts a daemon's process and logs the address of its admin page, because the configured port may be 0.
async fn start(format: LogFormat, admin: SocketAddr, warnings: &[String]) -> Result<Process, Failure> {
    let process = Process::start(format, admin, 1).await?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!("the admin page listens on {}", process.admin);
    Ok(process)
}
