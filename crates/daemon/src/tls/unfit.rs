//! Certificates of a kind that clients refuse. Some clients accept them all the same, so a server presents them.

use super::diagnosis::RECIPE;
use super::identity::Identity;
use super::validity::{WHAT, addresses, is_authority, names};
use crate::examination::Finding;
use rustls_pki_types::CertificateDer;

/// Finds that a server's certificate is of a kind that clients refuse, whenever and at whatever name they meet it.
pub(super) fn unfit_for_servers(identity: &Identity) -> Option<Finding> {
    let shown = identity.shown()?;
    let own = shown.own()?;
    unnamed(identity, own).or_else(|| of_authority(identity, own))
}

/// Finds that a certificate is for no name and no address.
pub(super) fn unnamed(identity: &Identity, own: &CertificateDer<'_>) -> Option<Finding> {
    (names(own).is_empty() && addresses(own).is_empty()).then(|| {
        Finding::bad(
            WHAT,
            format!("the certificate in {} names no host (subjectAltName)", identity.file()),
            "clients refuse it at the TLS handshake, whatever the URL",
            format!("have one made with the host of the URL as subjectAltName ({RECIPE})"),
        )
    })
}

pub(super) fn of_authority(identity: &Identity, own: &CertificateDer<'_>) -> Option<Finding> {
    is_authority(own).then(|| {
        Finding::bad(
            WHAT,
            format!("the certificate in {} is an authority's own (CA:TRUE)", identity.file()),
            "agents, gateways and other programs refuse such a certificate at the TLS handshake",
            "sign another one by it (basicConstraints CA:FALSE) and show that; a self-signed one is made by openssl req -x509 \
                 -addext basicConstraints=critical,CA:FALSE",
        )
    })
}
