//! Validity of a server's certificate. Clients refuse an expired one at every handshake.

use crate::examination::Finding;
use crate::utc::{rfc3339, rough};
use rustls_pki_types::CertificateDer;
use std::collections::BTreeSet;
use std::net::IpAddr;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

pub(super) const WHAT: &str = "certificate";
/// Divisor of a certificate's life: with less than a fifth left, renewal is overdue. ACME clients renew with a third left.
const LAST_PART: u64 = 5;
/// Remaining validity, in seconds, below which a certificate is reported whatever its life: the alert is critical then.
const LAST_DAYS: u64 = 3 * 86_400;

/// Returns the host names of a certificate, in lower case.
pub(super) fn names(certificate: &CertificateDer<'_>) -> BTreeSet<String> {
    alternative_names(certificate, |name| match name {
        GeneralName::DNSName(host) => Some(host.to_ascii_lowercase()),
        _ => None,
    })
}

pub(super) fn addresses(certificate: &CertificateDer<'_>) -> BTreeSet<IpAddr> {
    alternative_names(certificate, |name| match name {
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(*octets).ok().map(IpAddr::from),
        },
        _ => None,
    })
}

fn alternative_names<T: Ord>(
    certificate: &CertificateDer<'_>,
    of_kind: impl FnMut(&GeneralName<'_>) -> Option<T>,
) -> BTreeSet<T> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return BTreeSet::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    names.value.general_names.iter().filter_map(of_kind).collect()
}

/// `true` for the certificate of an authority, which clients do not accept from a server.
pub(super) fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    certificate.is_ca()
}

/// Period in which a certificate is valid, in Unix seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: u64,
    pub(super) until: u64,
}

pub(super) fn refused(seen: impl Into<String>, advice: &str) -> Finding {
    Finding::bad(WHAT, seen, "connections that need it fail", advice)
}

impl Validity {
    /// Reads the period; `None` if the certificate cannot be parsed, which proves nothing. In a chain the server's own
    /// certificate counts: clients find other paths to an authority than the one presented.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let second = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or_default();
        let x509_parser::certificate::Validity { not_before, not_after } = *certificate.validity();
        Some(Self { from: second(not_before), until: second(not_after) })
    }

    /// Judges the period at `now` for the certificate `which` (such as "in server.pem"). `advice` is the remedy.
    pub(super) fn verdict(self, which: &str, now: u64, advice: &str) -> Finding {
        let Self { from, until } = self;
        if now < from {
            let seen = format!(
                "the certificate {which} is valid from {} on, and this machine's clock says {}: clients refuse it at the TLS \
                 handshake",
                rfc3339(from),
                rfc3339(now)
            );
            return refused(seen, "Set the clock, or use the certificate before");
        }
        if now > until {
            let seen = format!(
                "the certificate {which} ended at {}, and this machine's clock says {}: clients refuse it at the TLS handshake",
                rfc3339(until),
                rfc3339(now)
            );
            return refused(seen, advice);
        }
        let seen = format!("the certificate {which} ends at {}, in {}", rfc3339(until), rough(until - now));
        if (until - now) < ((until - from) / LAST_PART).max(LAST_DAYS) {
            return Finding::look(WHAT, format!("{seen}, and clients will refuse it then")).remedy(advice);
        }
        Finding::well(WHAT, seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examination::Verdict;
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
            let finding = validity.verdict("in f", day * DAY, "Renew it");
            let (kind, text) = match finding.verdict {
                Verdict::Well => ("good", finding.seen),
                Verdict::Look => ("soon", finding.seen),
                Verdict::Bad => ("refused", finding.seen),
            };
            let (kind_expected, text_expected) = expected.split_once(": ").unwrap_or((expected, ""));
            assert_eq!(kind, kind_expected, "day {day}");
            assert!(text.contains(text_expected), "day {day}: {text}");
        }
    }
}
