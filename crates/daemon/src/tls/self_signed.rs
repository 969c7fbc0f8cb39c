//! A certificate for trying: of an authority that is made for it alone, and whose key is thrown away at once.

use super::{ServerTls, TlsConfig};
use crate::examination::Verdict;
use crate::files::{create_directory, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The file that clients trust.
const AUTHORITY: &str = "ca.pem";
/// The server's certificate and its key.
const SERVER: &str = "server.pem";
const LIFE: Duration = Duration::from_secs(90 * 86_400);

/// Makes a certificate for localhost and for `address` in a folder, unless there is one that is good for a while. Blocks on the disk.
///
/// # Errors
/// When the folder cannot be written, or `address` cannot be in a certificate.
pub fn self_signed(directory: &Path, address: IpAddr) -> Result<SelfSigned, SelfSignedError> {
    let (authority, server) = (directory.join(AUTHORITY), directory.join(SERVER));
    let is_good = authority.exists()
        && ServerTls::load(&server, &server).is_ok_and(|tls| tls.examine().verdict == Verdict::Well);
    if !is_good {
        let (ca, own) = make(address)?;
        create_directory(directory)
            .and_then(|()| write_private(&server, own.as_bytes()))
            .and_then(|()| write_private(&authority, ca.as_bytes()))
            .map_err(|source| SelfSignedError::Write { directory: directory.to_owned(), source })?;
    }
    Ok(SelfSigned { tls: TlsConfig::of_files(server.clone(), server), authority })
}

/// A certificate for trying.
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// What the server shows.
    pub tls: TlsConfig,
    /// The file that clients have to trust.
    pub authority: PathBuf,
}

/// Why there is no certificate for trying.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// The folder.
    #[error("cannot write a certificate to {}: {source}", directory.display())]
    Write {
        /// The folder.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// The authority's certificate; the server's with its key. All as PEM.
fn make(address: IpAddr) -> Result<(String, String), rcgen::Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !address.is_unspecified() && !address.is_loopback() {
        names.push(address.to_string());
    }
    let now = SystemTime::now();
    let params = |names, called: &str| {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, called);
        (params.not_before, params.not_after) = (now.into(), (now + LIFE).into());
        Ok::<_, rcgen::Error>(params)
    };
    let mut authority = params(Vec::new(), "Postern, for trying")?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let ca_key = KeyPair::generate()?;
    let ca = authority.self_signed(&ca_key)?.pem();
    let mut server = params(names, "localhost")?;
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &Issuer::new(authority, ca_key))?.pem();
    Ok((ca, key.serialize_pem() + &certificate))
}
