//! The certificate that a server presents, and its files.

use super::acme::Challenges;
use super::diagnosis::RECIPE;
use super::validity::{Validity, WHAT, addresses, is_authority, names, refused};
use super::{TlsError, identity, provider};
use crate::drain::Reloads;
use crate::examination::{Finding, Verdict};
use crate::readiness::Gate;
use crate::utc::unix_now;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;

/// Interval between checks of a certificate's validity and its files.
pub(super) const LOOKS: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    shown: ArcSwapOption<Shown>,
    /// State of the files when they were last read and usable.
    read: Mutex<[Option<Stamp>; 2]>,
    /// Reason why the files cannot be used since they changed; `None` while the certificate shown is theirs.
    unusable: Mutex<Option<String>>,
    pub(super) challenges: Arc<Challenges>,
}

/// A certificate chain with its key, which are known to match.
#[derive(Debug)]
pub(super) struct Shown {
    key: Arc<CertifiedKey>,
    validity: Option<Validity>,
}

impl Shown {
    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, rustls::Error> {
        let validity = chain.first().and_then(Validity::of);
        Ok(Self { key: Arc::new(CertifiedKey::from_der(chain, key, &provider())?), validity })
    }

    /// Parses a chain and a key in one PEM text.
    pub(super) fn from_pem(text: &[u8]) -> Result<Self, String> {
        let not_pem = |error: pem::Error| format!("it is not PEM: {error}");
        let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>().map_err(not_pem)?;
        if chain.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(text).map_err(not_pem)?;
        Self::new(chain, key).map_err(|error| format!("it does not belong to the key: {error}"))
    }

    /// Returns the server's own certificate.
    pub(super) fn own(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }
}

/// State of a file, which differs after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode, on systems that have them.
    place: [u64; 2],
    written: Option<SystemTime>,
    length: u64,
}

impl Stamp {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self { place: place(&file), written: file.modified().ok(), length: file.len() })
    }
}

#[cfg(unix)]
fn place(file: &Metadata) -> [u64; 2] {
    use std::os::unix::fs::MetadataExt;

    [file.dev(), file.ino()]
}

#[cfg(windows)]
fn place(_: &Metadata) -> [u64; 2] {
    [0; 2]
}

impl Identity {
    /// Creates an identity that has read nothing yet.
    pub(super) fn new(certificate: PathBuf, key: PathBuf) -> Self {
        let (shown, read, unusable) = (ArcSwapOption::empty(), Mutex::default(), Mutex::default());
        Self { certificate, key, shown, read, unusable, challenges: Arc::default() }
    }

    /// Reads the files, and presents their certificate to new connections.
    pub(super) fn read_again(&self) -> Result<(), TlsError> {
        let Self { certificate, key, .. } = self;
        let stamps = self.stamps(); // taken before the read, so that a change during it is noticed
        let (chain, key_der) = identity(certificate, key)?;
        let shown =
            Shown::new(chain, key_der).map_err(|source| TlsError::unfit_pair(certificate, key, &source))?;
        self.show(shown);
        *self.read.lock() = stamps;
        Ok(())
    }

    pub(super) fn has_changed(&self) -> bool {
        self.stamps() != *self.read.lock()
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        [&self.certificate, &self.key].map(|path| Stamp::of(path))
    }

    /// Returns the file of the private key, if every user of this machine may read it.
    pub(super) fn exposed_key(&self) -> Option<&Path> {
        #[cfg(unix)]
        {
            crate::examination::is_exposed(&self.key).then_some(&*self.key)
        }
        #[cfg(windows)]
        None
    }

    pub(super) fn shown_key(&self) -> Option<Arc<CertifiedKey>> {
        self.shown.load().as_ref().map(|shown| Arc::clone(&shown.key))
    }

    /// Reads the files again when they change, and on a reload. `advice` as for [`Identity::verdict`]. Logs the fault that
    /// `unfit` finds in each certificate: some clients may accept it, so it is presented all the same.
    pub(super) async fn follow<F: Fn(u64)>(
        &self,
        report: &mut Report<F>,
        reloads: &mut Reloads,
        advice: &str,
        unfit: fn(&Self) -> Option<Finding>,
    ) {
        let warn = || {
            if let Some(Finding { seen, cost, remedy, .. }) = unfit(self) {
                let [cost, remedy] = [cost, remedy].map(Option::unwrap_or_default);
                tracing::warn!("{seen}: {cost}. To mend it, {remedy}");
            }
        };
        warn();
        loop {
            report.set(self.verdict(advice), self.ends());
            let is_reload = timeout(LOOKS, reloads.next()).await.is_ok();
            if !is_reload && !self.has_changed() {
                continue; // only the clock has advanced
            }
            if self.follow_change() {
                warn();
            }
        }
    }

    /// Reads the files again, and returns `true` if they are usable. If not, the previous certificate stays; the log gives each
    /// reason once.
    pub(super) fn follow_change(&self) -> bool {
        let reason = self.read_again().err().map(|error| error.to_string());
        let before = std::mem::replace(&mut *self.unusable.lock(), reason.clone());
        let is_usable = reason.is_none();
        match reason {
            None => tracing::info!("the certificate was read again and is used for new connections"),
            Some(reason) if before.as_ref() != Some(&reason) => {
                tracing::warn!("the new certificate or key cannot be used, so the old ones stay: {reason}");
            }
            Some(_) => {}
        }
        is_usable
    }

    /// Presents another certificate to new connections.
    pub(super) fn show(&self, shown: Shown) {
        self.shown.store(Some(Arc::new(shown)));
    }

    pub(super) fn shown(&self) -> Option<Arc<Shown>> {
        self.shown.load_full()
    }

    pub(super) fn file(&self) -> std::path::Display<'_> {
        self.certificate.display()
    }

    /// Returns the end of the certificate in Unix seconds; 0 if it is unknown.
    pub(super) fn ends(&self) -> u64 {
        self.shown.load().as_ref().and_then(|shown| shown.validity).map_or(0, |validity| validity.until)
    }

    /// Judges whether clients accept the certificate now, and whether its files could replace it. `advice` is the remedy, by the
    /// operator or by the server.
    pub(super) fn verdict(&self, advice: &str) -> Finding {
        let Some(shown) = self.shown() else {
            return refused("there is no certificate, so no client can connect", advice);
        };
        let unusable = self.unusable.lock().clone();
        let which = match unusable {
            Some(_) => format!("read before from {}", self.file()),
            None => format!("in {}", self.file()),
        };
        let of_shown = judged(shown.validity, &which, advice);
        match unusable {
            Some(reason) if of_shown.verdict != Verdict::Bad => {
                let seen = format!("its files changed and cannot be used: {reason}; {}", of_shown.seen);
                Finding::look(WHAT, seen).remedy(advice)
            }
            _ => of_shown,
        }
    }
}

/// Judges whether clients accept a certificate now; arguments as for [`Validity::verdict`].
pub(super) fn judged(validity: Option<Validity>, which: &str, advice: &str) -> Finding {
    match validity {
        Some(validity) => validity.verdict(which, unix_now(), advice),
        None => Finding::well(WHAT, format!("the certificate {which} does not say when it ends")),
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if Challenges::is_validation(&hello) {
            return self.challenges.answer(&hello);
        }
        self.shown_key()
    }
}

/// Reports of a certificate's state to an operator: readiness, the metric of its end, the log.
pub(super) struct Report<F> {
    gate: Gate,
    ends: F,
    logged: Verdict,
}

/// Returns a finding in one line: the observation and the advice.
pub(super) fn sentence(finding: Finding) -> String {
    format!("{}. {}", finding.seen, finding.remedy.unwrap_or_default())
}

impl<F: Fn(u64)> Report<F> {
    pub(super) fn new(gate: Gate, ends: F) -> Self {
        Self { gate, ends, logged: Verdict::Well }
    }

    /// Publishes a finding, and logs it if its kind differs from the last one's.
    pub(super) fn set(&mut self, finding: Finding, ends: u64) {
        (self.ends)(ends);
        let verdict = finding.verdict;
        let (reason, is_new) = (sentence(finding), verdict != self.logged);
        match verdict {
            Verdict::Well if is_new => tracing::info!("the certificate is good again"),
            Verdict::Look if is_new => tracing::warn!("degraded: certificate: {reason}"),
            Verdict::Bad if is_new => tracing::error!("not ready: certificate: {reason}"),
            _ => {}
        }
        match verdict {
            Verdict::Well => self.gate.set_ready(),
            Verdict::Look => self.gate.set_degraded(reason),
            Verdict::Bad => self.gate.set_not_ready(reason),
        }
        self.logged = verdict;
    }
}

/// Finds that a server's certificate is of a kind that clients refuse, whenever and at whatever name they meet it. Some clients
/// accept it all the same, so it is presented.
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
