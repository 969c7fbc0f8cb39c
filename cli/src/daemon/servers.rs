//! Commands of the two servers, whose options are the same: a configuration file and `--self-signed`.

use super::{environment, start, until_stopped, warn_of_unclaimed};
use crate::args::Server;
use crate::failure::Failure;
use crate::process::log_drain;
use postern_daemon::tls::{TlsConfig, self_signed};
use postern_gateway::Gateway;
use postern_issuer::Issuer;
use std::future::ready;
use std::net::SocketAddr;

pub(crate) async fn gateway(args: &Server) -> Result<(), Failure> {
    let (mut config, file) = postern_config::open::<postern_gateway::Config>(&args.config, environment())?;
    check_self_signed(config.tls.as_ref(), args)?;
    let process = start(config.log.format, config.listen.admin, file.warnings()).await?;
    let usage = "curl --proxy-cacert, [gateway] ca of an agent";
    let signed = sign_for(&mut config.tls, config.listen.address, args, usage)?;
    let gateway = Gateway::bind(&config, &process.context)?.reloading(file, signed);
    let patience = config.listen.patience;
    tracing::info!(
        "the gateway listens on {} as soon as its keys and its store can serve, and at the latest after {patience}",
        gateway.local_addr()
    );
    warn_of_unclaimed();
    process.report_to_systemd(gateway.listening());
    process.run(gateway.run(), config.drain.deadline.get(), log_drain).await
}

pub(crate) async fn issuer(args: &Server) -> Result<(), Failure> {
    let (mut config, file) = postern_config::open::<postern_issuer::Config>(&args.config, environment())?;
    let (admin, deadline) = (config.listen.admin, config.drain.deadline.get());
    check_self_signed(config.tls.as_ref(), args)?;
    let process = start(config.log.format, admin, file.warnings()).await?;
    let usage = "curl --cacert, [issuer] ca of an agent";
    let signed = sign_for(&mut config.tls, config.listen.address, args, usage)?;
    let issuer = Issuer::bind(config, &process.context).await?.reloading(file, signed);
    warn_of_unclaimed();
    process.report_to_systemd(ready(())); // its socket is already listening
    let serving = until_stopped(issuer.run(), process.context.shutdown.clone());
    process.run(serving, deadline, log_drain).await
}

/// Fails if `--self-signed` is given and the configuration has a certificate.
fn check_self_signed(tls: Option<&TlsConfig>, args: &Server) -> Result<(), Failure> {
    if args.self_signed.is_none() || tls.is_none() {
        return Ok(());
    }
    let file = args.config.display();
    Err(Failure::usage(format!("--self-signed makes a certificate, and {file} has one in [tls]: choose one")))
}

/// With `--self-signed`, creates a trial certificate and puts it into `tls`. `usage` names the options that trust it.
fn sign_for(
    tls: &mut Option<TlsConfig>,
    address: SocketAddr,
    args: &Server,
    usage: &str,
) -> Result<Option<TlsConfig>, Failure> {
    let Some(directory) = &args.self_signed else { return Ok(None) };
    let signed = self_signed(directory, address.ip()).map_err(Failure::configuration)?;
    tracing::warn!(
        "the certificate is a trial one, for localhost and the address in [listen]: clients must trust {} ({usage})",
        signed.authority.display()
    );
    *tls = Some(signed.tls);
    Ok(tls.clone())
}
