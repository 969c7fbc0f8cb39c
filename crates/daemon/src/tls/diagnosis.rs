//! Explanations of failed TLS handshakes for an operator, with advice.

use crate::utc::rough;
use rustls::{AlertDescription, CertificateError, Error as Tls, InvalidMessage};
use rustls_pki_types::UnixTime;
use std::error::Error;
use std::io;

pub(super) const RECIPE: &str = "docs/start.md, \"A gateway with TLS\", has the commands for a server";

/// Explains a connection that failed in its TLS handshake: the fault of the server's certificate, and advice. `None` if the cause
/// is not TLS. `ca` is the setting that names trusted certificates, such as "issuer.ca".
pub fn diagnose(error: &(dyn Error + 'static), ca: &str) -> Option<String> {
    match cause(error)? {
        Tls::InvalidCertificate(wrong) => Some(certificate(wrong, ca)),
        Tls::AlertReceived(alert) if is_about_a_certificate(*alert) => Some(format!(
            "the server accepts only clients with a certificate of its operator's authority ({alert:?}); get one there, and set \
             `certificate` and `key` next to {ca}"
        )),
        Tls::NoCertificatesPresented => Some("the server shows no certificate; give it one".to_owned()),
        Tls::InvalidMessage(InvalidMessage::InvalidContentType) => Some(
            "the server does not speak TLS; write http:// in place of https://, or set [tls] certificate and key \
             there"
                .to_owned(),
        ),
        other => Some(format!("the TLS handshake failed: {other}")),
    }
}

/// Returns the TLS error in a chain of errors. `io::Error::source` skips the wrapped error itself.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Tls> {
    let next = |error: &&'a (dyn Error + 'static)| {
        let error = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source())
    };
    std::iter::successors(Some(error), next).find_map(|error| error.downcast_ref())
}

/// `true` if a server sends this alert because it requires another certificate of its client, or any (RFC 8446, section 6.2).
fn is_about_a_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::CertificateRequired
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::DecryptError // signed by another authority of the same name
            | A::AccessDenied
    )
}

/// `true` for webpki's own error about X.509 version 1, whose type cannot be named here.
pub(super) fn is_version_1(error: &impl std::fmt::Debug) -> bool {
    format!("{error:?}").contains("UnsupportedCertVersion")
}

fn certificate(wrong: &CertificateError, ca: &str) -> String {
    use CertificateError as C;
    match wrong {
        C::UnknownIssuer | C::BadSignature => format!(
            "the server's certificate was signed by an authority that is not trusted here; set {ca} to a PEM file with \
             the certificate of the authority that signed it"
        ),
        C::NotValidForName => {
            "the server's certificate is for another name; reach the server by a name that is in its certificate, or \
             have one made with this name as subjectAltName"
                .to_owned()
        }
        C::NotValidForNameContext { expected, presented } => format!(
            "the server's certificate is not for \"{}\" but for {}; reach the server by a name that is in its \
             certificate, or have one made with this name as subjectAltName",
            expected.to_str(),
            names(presented)
        ),
        C::Expired => format!("the server's certificate has expired; {RENEW}"),
        C::ExpiredContext { time, not_after } => {
            format!("the server's certificate expired {} ago by this machine's clock; {RENEW}", apart(*time, *not_after))
        }
        C::NotValidYet => format!("the server's certificate is not valid yet; {CLOCKS}"),
        C::NotValidYetContext { time, not_before } => format!(
            "the server's certificate becomes valid in {} by this machine's clock; {CLOCKS}",
            apart(*not_before, *time)
        ),
        C::Revoked => "the server's certificate was revoked; give the server a new one".to_owned(),
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "the server's certificate is not made for servers; have one made with extendedKeyUsage = serverAuth"
                .to_owned()
        }
        // webpki's own error, whose type cannot be named here.
        C::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => format!(
            "the server shows the certificate of an authority (CA:TRUE, as \"openssl req -x509\" makes it by itself), \
             which is not accepted as a server's; make an authority and let it sign a certificate for the server \
             ({RECIPE}), and set {ca} to the authority's"
        ),
        other if is_version_1(other) => format!(
            "the server's certificate is of X.509 version 1, which has no subjectAltName; have one of version 3 made \
             ({RECIPE})"
        ),
        other => format!("the server's certificate is not accepted: {other}; {RECIPE} for one that is"),
    }
}

const RENEW: &str = "give the server a new one, or set the clock if it is wrong";
const CLOCKS: &str = "wait, or set the clock of this machine or of the one that made the certificate";

fn names(presented: &[String]) -> String {
    if presented.is_empty() { "no name at all".to_owned() } else { presented.join(", ") }
}

fn apart(later: UnixTime, earlier: UnixTime) -> String {
    rough(later.as_secs().saturating_sub(earlier.as_secs()))
}
