//! `postern gateway`, `postern issuer` and `postern client`: one daemon each, from a configuration file.

#[cfg(feature = "servers")]
mod servers;

#[cfg(feature = "servers")]
pub(crate) use servers::{gateway, issuer};

use crate::failure::Failure;
use crate::process::Process;
use postern_client::Agent;
use postern_config::Environment;
use postern_daemon::listen::handed;
use postern_telemetry::log::LogFormat;
use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;

pub(crate) async fn client(path: &Path) -> Result<(), Failure> {
    let (config, file) = postern_config::open::<postern_client::Config>(path, environment())?;
    let (admin, deadline) = (config.listen.admin, config.drain.deadline.get());
    let process = start(config.log.format, Some(admin), file.warnings()).await?;
    let agent = Agent::bind(config, &process.context).await?.reloading(file);
    tracing::info!("the agent listens on {}", agent.local_addr());
    warn_of_unclaimed();
    process.report_to_systemd(ready(()));
    let stopped = process.context.shutdown.clone();
    let serving = async move {
        agent.run().await;
        stopped.stopped().await; // its connections go on until they have drained
        Ok(())
    };
    process.run(serving, deadline).await
}

/// A socket unit and the configuration have to name the same addresses.
fn warn_of_unclaimed() {
    for address in handed::unclaimed() {
        tracing::warn!(
            "systemd handed over a socket that listens on {address}, and nothing here does: clients that connect there wait in vain. \
             Write the same address as ListenStream= of the socket unit and in [listen] of the configuration"
        );
    }
}

/// The variables of this process: one environment may serve all three daemons.
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

/// A daemon's process. It logs the address of its admin page, because the port may have been 0.
async fn start(
    format: LogFormat,
    admin: Option<SocketAddr>,
    warnings: &[String],
) -> Result<Process, Failure> {
    let process = Process::start(format, admin, 1).await?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if let Some(admin) = process.admin {
        tracing::info!("the admin page listens on {admin}");
    }
    Ok(process)
}
