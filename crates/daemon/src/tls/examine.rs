//! Examines certificates for an operator: those of files, and those that other servers show.

use super::identity::{Identity, now};
use super::validity::{Validity, Verdict, is_authority};
use super::{OwnCertificate, RENEW, ServerTls, client_config};
use crate::examination::{Examinations, Finding, PATIENCE};
use crate::utc::{rfc3339, rough};
use postern_lookup::Lookup;
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

const WHAT: &str = "certificate";

impl ServerTls {
    /// How long clients accept the certificate.
    #[must_use]
    pub fn examine(&self) -> Finding {
        if self.identity.shown().is_none() {
            return Finding::look(
                WHAT,
                "there is no certificate yet: the server orders one while it runs ([tls.acme])",
            );
        }
        found(&self.identity, self.advice())
    }

    /// A finding if clients of a URL with this host refuse the certificate, for it is for other names.
    #[must_use]
    pub fn examine_name(&self, host: &str, url: &str) -> Option<Finding> {
        let shown = self.identity.shown()?;
        let certificate = ParsedCertificate::try_from(shown.own()?).ok()?;
        let name = ServerName::try_from(host.trim_matches(['[', ']'])).ok()?;
        verify_server_name(&certificate, &name).err()?;
        let file = self.identity.file();
        let finding =
            Finding::bad(WHAT, format!("{url} leads here, and the certificate in {file} is not for {host}"))
                .costs("clients of that URL refuse the certificate at the TLS handshake")
                .remedy(format!("have {host} put into the certificate (subjectAltName), or correct the URL"));
        Some(finding)
    }
}

impl OwnCertificate {
    /// How long servers accept the certificate.
    #[must_use]
    pub fn examine(&self) -> Finding {
        found(self.identity(), RENEW)
    }
}

fn found(identity: &Identity, advice: &str) -> Finding {
    let (file, shown) = (identity.file(), identity.shown());
    if shown.as_ref().is_some_and(|shown| shown.own().is_some_and(is_authority)) {
        return Finding::bad(WHAT, format!("the certificate in {file} is an authority's own (CA:TRUE)"))
            .costs("agents, gateways and other programs refuse such a certificate at the TLS handshake")
            .remedy(
                "sign another one by it (basicConstraints CA:FALSE) and show that; a self-signed one is made by openssl req -x509 \
                 -addext basicConstraints=critical,CA:FALSE",
            );
    }
    let found =
        finding(&format!("in {file}"), shown.and_then(|shown| shown.validity()), identity.verdict(advice));
    match identity.exposed_key() {
        Some(key) if !matches!(found.verdict, crate::examination::Verdict::Bad) => Finding::bad(
            WHAT,
            format!("every user of this machine can read the private key {}", key.display()),
        )
        .costs("who reads it can pass for this daemon")
        .remedy(format!(
            "chmod o-rwx {}; if others have accounts here, have a new key certified",
            key.display()
        )),
        _ => found,
    }
}

fn finding(which: &str, validity: Option<Validity>, verdict: Verdict) -> Finding {
    match (verdict, validity) {
        (Verdict::Refused(text), _) => Finding::bad(WHAT, text),
        (Verdict::EndsSoon(text), _) => Finding::look(WHAT, text),
        (Verdict::Good, Some(Validity { until, .. })) => {
            let left = rough(until.saturating_sub(now()));
            Finding::well(WHAT, format!("the certificate {which} ends at {}, in {left}", rfc3339(until)))
        }
        (Verdict::Good, None) => {
            Finding::well(WHAT, format!("the certificate {which} does not say when it ends"))
        }
    }
}

/// [`begin_shown`] for the server at a URL, which is trusted by the certificates in `ca`, or by those of the system. Nothing for one
/// without TLS.
pub fn begin_shown_at(examinations: &mut Examinations, url: &Url, ca: Option<&Path>) {
    if url.scheme() != "https" {
        return;
    }
    let (Ok(config), Some(host)) = (client_config(ca), url.host_str()) else { return };
    begin_shown(examinations, (host, url.port_or_known_default().unwrap_or(443)), host, config);
}

/// Begins to look at the certificate that the server at `host` and `port` shows to a client with this configuration, which expects
/// it to be for `name`. Nothing is found where there is no connection, or the certificate is refused: the examination of the server
/// itself says why.
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
        let verdict = shown.map_or(Verdict::Good, |validity| {
            validity.verdict(&which, now(), "Its operator has to renew it")
        });
        vec![finding(&which, shown, verdict)]
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
