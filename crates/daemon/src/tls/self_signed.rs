//! A trial certificate by an authority that is made for it alone, and whose key is discarded immediately.

use super::validity::addresses;
use super::{ServerTls, TlsConfig};
use crate::examination::Verdict;
use crate::files::{create_directory, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// File of the authority, which clients trust.
const AUTHORITY: &str = "ca.pem";
/// File of the server's certificate and its key.
const SERVER: &str = "server.pem";
const LIFE: Duration = Duration::from_secs(90 * 86_400);

/// Makes a certificate for localhost and `address` in a directory, unless there is one that does not end soon. Addresses of the
/// previous one stay: another daemon may have it from the same directory. Blocks on the disk.
pub fn self_signed(directory: &Path, address: IpAddr) -> Result<SelfSigned, String> {
    let (authority, server) = (directory.join(AUTHORITY), directory.join(SERVER));
    let known = ServerTls::load(&server, &server).ok();
    let shown = known.as_ref().and_then(|tls| tls.identity.shown());
    let mut addresses = shown.and_then(|shown| shown.own().map(addresses)).unwrap_or_default();
    addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()]);
    let is_new = !address.is_unspecified() && !address.is_loopback() && addresses.insert(address);
    let is_good =
        authority.exists() && known.is_some_and(|tls| tls.examine().verdict == Verdict::Well) && !is_new;
    if !is_good {
        let (ca, own) = make(addresses).map_err(|error| format!("cannot make a certificate: {error}"))?;
        // First removes the previous authority: a crash before the last step must not leave it with the new certificate.
        create_directory(directory)
            .and_then(|()| match std::fs::remove_file(&authority) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            })
            .and_then(|()| write_private(&server, own.as_bytes()))
            .and_then(|()| write_private(&authority, ca.as_bytes()))
            .map_err(|error| format!("cannot write a certificate to {}: {error}", directory.display()))?;
    }
    Ok(SelfSigned { tls: TlsConfig::of_files(server.clone(), server), authority })
}

#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// The server's certificate.
    pub tls: TlsConfig,
    /// File of the authority that clients must trust.
    pub authority: PathBuf,
}

/// Returns the authority's certificate, and the server's key with its certificate, all as PEM.
fn make(addresses: BTreeSet<IpAddr>) -> Result<(String, String), rcgen::Error> {
    let names = ["localhost".to_owned()].into_iter().chain(addresses.iter().map(IpAddr::to_string)).collect();
    let now = SystemTime::now();
    let params = |names: Vec<String>, called: &str| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_again_for_another_address_and_without_its_authority() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let sign = |address| self_signed(directory.path(), address).unwrap();
        let read = || [AUTHORITY, SERVER].map(|name| std::fs::read(directory.path().join(name)).unwrap());
        sign(one);
        let first = read();
        sign(one);
        sign(Ipv4Addr::UNSPECIFIED.into());
        assert_eq!(read(), first);
        let made = sign(other);
        let tls = made.tls.open().unwrap();
        assert!(tls.examine_name("192.0.2.2", "").is_none() && tls.examine_name("192.0.2.1", "").is_none());
        let second = read();
        sign(one);
        assert_eq!(read(), second);
        std::fs::remove_file(&made.authority).unwrap(); // as after a crash
        sign(one);
        let third = read();
        assert!(third[0] != second[0] && third[1] != second[1]);
    }
}
