//! `postern gateway`, `postern issuer` and `postern client`: one daemon each, from a configuration file.

use crate::args::Server;
use crate::failure::Failure;
use crate::process::Process;
use postern_client::Agent;
use postern_config::Environment;
use postern_daemon::listen::handed;
use postern_daemon::tls::{TlsConfig, self_signed};
use postern_gateway::Gateway;
use postern_issuer::Issuer;
use postern_telemetry::log::LogFormat;
use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;

pub(crate) async fn gateway(args: &Server) -> Result<(), Failure> {
    let path = &args.daemon.config;
    let (mut config, file) = postern_config::open::<postern_gateway::Config>(path, environment())?;
    let process = start(config.log.format, Some(config.listen.admin), file.warnings()).await?;
    let signed = sign_for(&mut config.tls, config.listen.address, args)?;
    let gateway = Gateway::bind(&config, &process.context)?.reloading(file, signed);
    let patience = config.listen.patience;
    tracing::info!(
        "the gateway listens on {} as soon as its keys and its store can serve, and at the latest after {patience}",
        gateway.local_addr()
    );
    warn_of_unclaimed();
    process.report_to_systemd(gateway.listening());
    process.run(gateway.run(), config.drain.deadline.get()).await
}

pub(crate) async fn issuer(args: &Server) -> Result<(), Failure> {
    let path = &args.daemon.config;
    let (mut config, file) = postern_config::open::<postern_issuer::Config>(path, environment())?;
    let (admin, deadline) = (config.listen.admin, config.drain.deadline.get());
    let process = start(config.log.format, Some(admin), file.warnings()).await?;
    let signed = sign_for(&mut config.tls, config.listen.address, args)?;
    let issuer = Issuer::bind(config, &process.context).await?.reloading(file, signed);
    warn_of_unclaimed();
    process.report_to_systemd(ready(())); // its socket listens by now
    let serving = async {
        issuer.run().await;
        Ok(())
    };
    process.run(serving, deadline).await
}

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

/// With `--self-signed`: a certificate for trying, where the configuration has none. Returns it.
fn sign_for(
    tls: &mut Option<TlsConfig>,
    address: SocketAddr,
    args: &Server,
) -> Result<Option<TlsConfig>, Failure> {
    let Some(directory) = &args.self_signed else { return Ok(None) };
    if tls.is_some() {
        let file = args.daemon.config.display();
        return Err(Failure::usage(format!(
            "--self-signed makes a certificate, and {file} has one in [tls]: choose one"
        )));
    }
    let signed = self_signed(directory, address.ip()).map_err(Failure::configuration)?;
    tracing::warn!(
        "the certificate is for localhost and for trying: clients trust {} (curl --proxy-cacert, `ca` of an agent)",
        signed.authority.display()
    );
    *tls = Some(signed.tls);
    Ok(tls.clone())
}

/// The variables of this process: one environment may serve all three daemons.
pub(crate) fn environment() -> Environment {
    let gateway = postern_config::variables::<postern_gateway::Config>();
    let issuer = postern_config::variables::<postern_issuer::Config>();
    let client = postern_config::variables::<postern_client::Config>();
    Environment::of_process([gateway, issuer, client].concat())
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
