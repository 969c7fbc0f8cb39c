//! Names to addresses, by the system's configuration (/etc/resolv.conf and /etc/hosts), without its search domains: a
//! client's name means the same through every gateway.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;
use std::net::IpAddr;

/// A caching resolver. Each worker has its own, since its background tasks live on the worker's runtime.
pub(crate) struct Resolver(TokioResolver);

/// Why the system's resolver configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the system's resolver configuration: {0}; /etc/resolv.conf must name a DNS server")]
pub struct ResolverError(String);

impl Resolver {
    pub(crate) fn new() -> Result<Self, ResolverError> {
        let fail = |error: NetError| ResolverError(error.to_string());
        let (system, mut options) = read_system_conf().map_err(fail)?;
        let config = ResolverConfig::from_parts(None, Vec::new(), system.name_servers().to_vec());
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self(builder.build().map_err(fail)?))
    }

    /// All addresses of a name, those of IPv6 first: `dial` begins with the first family.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NetError> {
        Ok(self.0.lookup_ip(name).await?.iter().collect())
    }
}
