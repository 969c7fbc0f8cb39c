//! `postern gateway` and `postern issuer`.

use super::{environment, start, warn_of_unclaimed};
use crate::args::Server;
use crate::failure::Failure;
use postern_daemon::tls::{TlsConfig, self_signed};
use postern_gateway::Gateway;
use postern_issuer::Issuer;
use std::future::ready;
use std::net::SocketAddr;

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
