//! The certificate that a server shows, and where it comes from.

use super::acme::Challenges;
use super::validity::{Validity, Verdict};
use super::{TlsError, identity, provider};
use crate::drain::Reloads;
use crate::readiness::Gate;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::Metadata;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

/// How often to look whether a certificate still is good, and the same.
pub(super) const LOOKS: Duration = Duration::from_secs(60);

/// The certificate shown to clients, and the files it is read from.
#[derive(Debug)]
pub(super) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    shown: ArcSwapOption<Shown>,
    /// The state of the files when they were read last, and could be used.
    read: Mutex<[Option<Stamp>; 2]>,
    pub(super) challenges: Arc<Challenges>,
}

/// A certificate chain with its key, of which it is known that they belong together.
#[derive(Debug)]
pub(super) struct Shown {
    key: Arc<CertifiedKey>,
    validity: Option<Validity>,
}

/// Why a chain and a key in one text cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShownError {
    #[error("it is not PEM: {0}")]
    Pem(#[from] pem::Error),
    #[error("there is no certificate in it")]
    NoCertificate,
    #[error("it does not belong to the key: {0}")]
    Key(#[from] rustls::Error),
}

impl Shown {
    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, rustls::Error> {
        let validity = chain.first().and_then(Validity::of);
        Ok(Self { key: Arc::new(CertifiedKey::from_der(chain, key, &provider())?), validity })
    }

    /// Of a chain and a key in one PEM text.
    pub(super) fn from_pem(text: &[u8]) -> Result<Self, ShownError> {
        let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()?;
        if chain.is_empty() {
            return Err(ShownError::NoCertificate);
        }
        Ok(Self::new(chain, PrivateKeyDer::from_pem_slice(text)?)?)
    }

    /// `None` where the certificate cannot be read.
    pub(super) const fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// The server's own certificate.
    pub(super) fn own(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode, where files have them.
    place: [u64; 2],
    written: Option<SystemTime>,
    length: u64,
}

impl Stamp {
    /// `None` where the file cannot be found.
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
    /// Nothing is read yet.
    pub(super) fn new(certificate: PathBuf, key: PathBuf) -> Self {
        let (shown, read) = (ArcSwapOption::empty(), Mutex::default());
        Self { certificate, key, shown, read, challenges: Arc::default() }
    }

    /// Shows what is in the files now to new connections.
    pub(super) fn read_again(&self) -> Result<(), TlsError> {
        let Self { certificate, key, .. } = self;
        let stamps = self.stamps(); // before: what changes during the reading is read again
        let (chain, key_der) = identity(certificate, key)?;
        let shown = Shown::new(chain, key_der).map_err(|source| TlsError::Refused {
            certificate: certificate.clone(),
            key: key.clone(),
            source,
        })?;
        self.show(shown);
        *self.read.lock() = stamps;
        Ok(())
    }

    /// Whether a file has changed since what is shown was read.
    pub(super) fn has_changed(&self) -> bool {
        self.stamps() != *self.read.lock()
    }

    fn stamps(&self) -> [Option<Stamp>; 2] {
        [&self.certificate, &self.key].map(|path| Stamp::of(path))
    }

    /// The file of the private key, if every user of this machine may read it.
    pub(super) fn exposed_key(&self) -> Option<&Path> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;

            let mode = std::fs::metadata(&self.key).ok()?.mode();
            (mode & 0o004 != 0).then_some(&*self.key)
        }
        #[cfg(windows)]
        None
    }

    pub(super) fn shown_key(&self) -> Option<Arc<CertifiedKey>> {
        self.shown.load().as_ref().map(|shown| Arc::clone(&shown.key))
    }

    /// Reads the files again when they change, and on a reload. `advice` as for [`Identity::verdict`].
    pub(super) async fn follow<F: Fn(u64)>(
        &self,
        report: &mut Report<F>,
        reloads: &mut Reloads,
        advice: &str,
    ) {
        loop {
            report.set(self.verdict(advice), self.ends());
            let is_reload = timeout(LOOKS, reloads.next()).await.is_ok();
            if !is_reload && !self.has_changed() {
                continue; // the clock went on
            }
            self.follow_change();
        }
    }

    /// Reads the files again; where they cannot be used, the certificate before stays.
    pub(super) fn follow_change(&self) {
        match self.read_again() {
            Ok(()) => tracing::info!("the certificate was read again and is used for new connections"),
            Err(error) => {
                tracing::warn!("the new certificate or key cannot be used, so the old ones stay: {error}");
            }
        }
    }

    /// Shows another certificate to new connections.
    pub(super) fn show(&self, shown: Shown) {
        self.shown.store(Some(Arc::new(shown)));
    }

    /// What is shown now.
    pub(super) fn shown(&self) -> Option<Arc<Shown>> {
        self.shown.load_full()
    }

    /// The file of the certificate.
    pub(super) fn file(&self) -> std::path::Display<'_> {
        self.certificate.display()
    }

    /// When the certificate ends, in seconds since 1970; 0 if that is not known.
    pub(super) fn ends(&self) -> u64 {
        self.shown.load().as_ref().and_then(|shown| shown.validity).map_or(0, |validity| validity.until)
    }

    /// Whether clients accept the certificate now. `advice` says what is done about it, or has to be.
    pub(super) fn verdict(&self, advice: &str) -> Verdict {
        let which = format!("in {}", self.file());
        match self.shown.load().as_ref() {
            None => Verdict::Refused(format!("there is no certificate, so no client can connect. {advice}")),
            Some(shown) => {
                shown.validity.map_or(Verdict::Good, |validity| validity.verdict(&which, now(), advice))
            }
        }
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

/// The machine's clock, in seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Where an operator reads of a certificate: readiness, the metric of its end, the log.
pub(super) struct Report<F> {
    gate: Gate,
    ends: F,
    logged: Verdict,
}

impl<F: Fn(u64)> Report<F> {
    pub(super) fn new(gate: Gate, ends: F) -> Self {
        Self { gate, ends, logged: Verdict::Good }
    }

    /// Logs a verdict of another kind than the last one that was logged.
    pub(super) fn set(&mut self, verdict: Verdict, ends: u64) {
        (self.ends)(ends);
        let is_new = discriminant(&verdict) != discriminant(&self.logged);
        match &verdict {
            Verdict::Good if is_new => tracing::info!("the certificate is good again"),
            Verdict::EndsSoon(text) if is_new => tracing::warn!("degraded: certificate: {text}"),
            Verdict::Refused(text) if is_new => tracing::error!("not ready: certificate: {text}"),
            _ => {}
        }
        match &verdict {
            Verdict::Good => self.gate.set_ready(),
            Verdict::EndsSoon(text) => self.gate.set_degraded(text),
            Verdict::Refused(text) => self.gate.set_not_ready(text),
        }
        self.logged = verdict;
    }
}
