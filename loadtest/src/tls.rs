//! TLS to the proxy. All proxies get the same handshake: TLS 1.3, X25519, AES-128-GCM, no resumption.

use anyhow::{Context, Result};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

/// Returns the name in the proxy's certificate.
pub(crate) fn name() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from("localhost")?)
}

/// Creates a configuration that trusts the authority in this PEM file and offers these protocols.
pub(crate) fn config(ca: &Path, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(ca);
    roots.add(authority.with_context(|| format!("cannot read {}", ca.display()))?)?;
    let provider = CryptoProvider {
        cipher_suites: vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![provider::kx_group::X25519],
        ..provider::default_provider()
    };
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A TLS connection. Dropping it sends `close_notify`.
pub(crate) struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    /// Creates a connection. The handshake happens with the first bytes.
    pub(crate) fn new(config: &Arc<ClientConfig>, stream: TcpStream) -> Result<Self> {
        Ok(Self(StreamOwned::new(ClientConnection::new(Arc::clone(config), name()?)?, stream)))
    }
}

impl Read for Tls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Tls {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.conn.write_tls(&mut self.0.sock); // fails if the proxy is gone
    }
}
