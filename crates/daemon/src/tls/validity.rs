//! How long a server's certificate is still good. Clients refuse one that has ended, at every handshake.

use crate::utc::{rfc3339, rough};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeSet;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

/// A certificate should have been renewed when less than this part of its life is left: a fifth. ACME clients renew with a third
/// left.
const LAST_PART: u64 = 5;

/// The host names of a certificate, in lower case.
pub(super) fn names(certificate: &CertificateDer<'_>) -> BTreeSet<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return BTreeSet::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let hosts = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(host) => Some(host.to_ascii_lowercase()),
        _ => None,
    });
    hosts.collect()
}

/// Whether a certificate is one of an authority, which clients do not accept of a server.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    certificate.is_ca()
}

/// From when until when a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: u64,
    pub(super) until: u64,
}

/// Whether clients accept a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// They do, and not for long: why, and what to do.
    EndsSoon(String),
    /// They do not: why, and what to do.
    Refused(String),
}

impl Validity {
    /// `None` where it cannot be read, which then says nothing. Of a chain the server's own counts: clients find other ways to an
    /// authority than those that they are shown.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let second = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or_default();
        let x509_parser::certificate::Validity { not_before, not_after } = *certificate.validity();
        Some(Self { from: second(not_before), until: second(not_after) })
    }

    /// What it means at `now` for the certificate `which` (such as "in server.pem"). `advice` is the sentence that follows.
    pub(super) fn verdict(self, which: &str, now: u64, advice: &str) -> Verdict {
        let Self { from, until } = self;
        if now < from {
            return Verdict::Refused(format!(
                "the certificate {which} is valid from {} on, and this machine's clock says {}: clients refuse it at the TLS \
                 handshake. Set the clock, or use the certificate before",
                rfc3339(from),
                rfc3339(now)
            ));
        }
        if now > until {
            return Verdict::Refused(format!(
                "the certificate {which} ended at {}, and this machine's clock says {}: clients refuse it at the TLS handshake. \
                 {advice}",
                rfc3339(until),
                rfc3339(now)
            ));
        }
        if (until - now) < (until - from) / LAST_PART {
            return Verdict::EndsSoon(format!(
                "the certificate {which} ends at {}, in {}, and clients will refuse it then. {advice}",
                rfc3339(until),
                rough(until - now)
            ));
        }
        Verdict::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    const DAY: u64 = 86_400;

    #[test]
    fn validity_is_read_from_the_certificate() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2026, 11, 1);
        params.not_after = date_time_ymd(2027, 1, 30);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let validity = Validity::of(certificate.der()).unwrap();
        assert_eq!(rfc3339(validity.from), "2026-11-01T00:00:00Z");
        assert_eq!(rfc3339(validity.until), "2027-01-30T00:00:00Z");
        assert_eq!(Validity::of(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn a_certificate_should_be_renewed_before_the_last_fifth_of_its_life() {
        let validity = Validity { from: 100 * DAY, until: 190 * DAY };
        for (day, expected) in [
            (99, "refused: valid from 1970-04-11T00:00:00Z on"),
            (100, "good"),
            (172, "good"),
            (173, "soon: ends at 1970-07-10T00:00:00Z, in 17 days"),
            (190, "soon: ends at 1970-07-10T00:00:00Z, in 0 s"),
            (
                191,
                "refused: ended at 1970-07-10T00:00:00Z, and this machine's clock says 1970-07-11T00:00:00Z",
            ),
        ] {
            let (kind, text) = match validity.verdict("in f", day * DAY, "Renew it") {
                Verdict::Good => ("good", String::new()),
                Verdict::EndsSoon(text) => ("soon", text),
                Verdict::Refused(text) => ("refused", text),
            };
            let (kind_expected, text_expected) = expected.split_once(": ").unwrap_or((expected, ""));
            assert_eq!(kind, kind_expected, "day {day}");
            assert!(text.contains(text_expected), "day {day}: {text}");
        }
    }
}
