//! TLS of a listener that speaks HTTP.

use super::ServerTls;
use rustls::ServerConfig;
use std::sync::Arc;

/// How connections are accepted over TLS.
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// In the versions of HTTP that are switched on.
    pub serving: Arc<ServerConfig>,
    /// In HTTP/1.1 alone: who is turned away gets an answer to no request, for which HTTP/2 has no form.
    pub refusing: Arc<ServerConfig>,
}

impl ListenerTls {
    /// With this certificate, and HTTP/2 where it is switched on.
    #[must_use]
    pub fn new(tls: &ServerTls, http2: bool) -> Self {
        Self { serving: tls.speaking(http2), refusing: tls.config() }
    }
}
