//! Examinations of certificates for an operator: in files, and as presented by other servers.

use super::identity::{Identity, judged, of_authority, unnamed};
use super::validity::{Validity, WHAT};
use super::{OwnCertificate, RENEW, ServerTls, client_config};
use crate::examination::{Examinations, Finding, PATIENCE, Verdict};
use postern_net::Lookup;
use reqwest::Url;
use rustls::ClientConfig;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls_pki_types::ServerName;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;

impl ServerTls {
    /// Examines the certificate: its validity, its kind, and the permissions of its key.
    pub fn examine(&self) -> Finding {
        let Some(shown) = self.identity.shown() else {
            return Finding::look(
                WHAT,
                "there is no certificate yet: the server orders one while it runs ([tls.acme])",
            );
        };
        let fault = shown.own().and_then(|own| unnamed(&self.identity, own));
        fault.unwrap_or_else(|| found(&self.identity, self.advice()))
    }

    /// Returns a finding if clients of a URL with this host refuse the certificate, because it is for other names.
    pub fn examine_name(&self, host: &str, url: &str) -> Option<Finding> {
        let shown = self.identity.shown()?;
        let certificate = ParsedCertificate::try_from(shown.own()?).ok()?;
        let name = ServerName::try_from(host.trim_matches(['[', ']'])).ok()?;
        verify_server_name(&certificate, &name).err()?;
        let file = self.identity.file();
        let finding = Finding::bad(
            WHAT,
            format!("{url} leads here, and the certificate in {file} is not for {host}"),
            "clients of that URL refuse the certificate at the TLS handshake",
            format!("have {host} put into the certificate (subjectAltName), or correct the URL"),
        );
        Some(finding)
    }
}

impl OwnCertificate {
    /// Examines the certificate: its validity, its kind, and the permissions of its key.
    pub fn examine(&self) -> Finding {
        found(&self.0, RENEW)
    }
}

fn found(identity: &Identity, advice: &str) -> Finding {
    let shown = identity.shown();
    let fault = shown.as_ref().and_then(|shown| of_authority(identity, shown.own()?));
    if let Some(fault) = fault {
        return fault;
    }
    let found = identity.verdict(advice);
    match identity.exposed_key() {
        Some(key) if found.verdict != Verdict::Bad => Finding::bad(
            WHAT,
            format!("every user of this machine can read the private key {}", key.display()),
            "who reads it can pass for this daemon",
            format!("chmod o-rwx {}; if others have accounts here, have a new key certified", key.display()),
        ),
        _ => found,
    }
}

/// Begins [`begin_shown`] for the server at a URL, which is trusted by the certificates in `ca`, or by those of the system. Does
/// nothing for a URL without TLS.
pub fn begin_shown_at(examinations: &mut Examinations, url: &Url, ca: Option<&Path>) {
    if url.scheme() != "https" {
        return;
    }
    let (Ok(config), Some(host)) = (client_config(ca), url.host_str()) else { return };
    begin_shown(examinations, (host, url.port_or_known_default().unwrap_or(443)), host, config);
}

/// Begins to examine the certificate that the server at `host` and `port` presents to a client with this configuration, which
/// expects it to be for `name`. Finds nothing if there is no connection or the certificate is refused: the examination of the
/// server itself reports that.
pub fn begin_shown(
    examinations: &mut Examinations,
    (host, port): (&str, u16),
    name: &str,
    config: Arc<ClientConfig>,
) {
    let [host, name] = [host, name].map(|text| text.trim_matches(['[', ']']).to_owned());
    let which = format!("of the server at {host}:{port}");
    let late = Finding::look(WHAT, format!("the certificate {which} was not shown in time"));
    examinations.begin(late, async move {
        let Ok(shown) = shown(&host, port, name, config).await else { return Vec::new() };
        vec![judged(shown, &which, "Its operator has to renew it")]
    });
}

async fn shown(
    host: &str,
    port: u16,
    name: String,
    config: Arc<ClientConfig>,
) -> io::Result<Option<Validity>> {
    let name = ServerName::try_from(name).map_err(io::Error::other)?;
    let stream = Lookup::keeping(Duration::ZERO).connect(host, port, PATIENCE).await?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().and_then(Validity::of))
}
