//! Names to addresses, by the system's configuration (/etc/resolv.conf and /etc/hosts) or by name servers of the operator's
//! choice, without search domains: a client's name means the same through every gateway.

use crate::config::{NameServer, ResolverConfig as Settings, ResolverConfigError, ResolverKind};
use crate::observe::catalogue;
use crate::observe::labels::LookupEnded;
use crate::request::deny::Refusal;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;
use metrics::{Counter, counter};
use parking_lot::Mutex;
use postern_daemon::tls::{ClientConfig, TlsError, store_client_config};
use postern_telemetry::metrics::from_zero;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

mod current;
mod each;
#[cfg(test)]
mod tests;

pub(crate) use current::CurrentResolver;
pub(crate) use each::{Asked, each_server};

/// How long a failure is remembered. A name server that is down fails each question for it, and a token buys a question.
const FAILED: Duration = Duration::from_secs(1);
/// Addresses that are kept of one answer. A name can have thousands, and `connect` tries few.
const MOST_ADDRESSES: usize = 16;
/// Names of which the answer is remembered: 253 bytes each at most, and the addresses, so some 5 MiB.
const MOST_NAMES: usize = 8192;

/// Questions that wait at once on one connection to a server. Each is a tunnel's, and these are bounded.
const MOST_QUESTIONS: usize = 4096;

/// A caching resolver: equal questions in flight are one, and answers are kept for their time to live. Each worker has its
/// own, since its background tasks live on the worker's runtime.
pub(crate) struct Resolver {
    resolver: TokioResolver,
    answers: Mutex<Answers>,
    /// How long answers are kept, at least and at most.
    kept: [Duration; 2],
    ended: Vec<Counter>,
}

/// Why the configuration of the resolver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// The system's.
    #[error("cannot read the system's resolver configuration: {0}; /etc/resolv.conf must name a DNS server")]
    System(String),
    /// Keys that do not go together.
    #[error(transparent)]
    Keys(#[from] ResolverConfigError),
    /// The trusted certificates.
    #[error("egress.resolver: {0}")]
    Tls(#[from] TlsError),
    /// The resolver itself.
    #[error("cannot set up the resolver: {0}")]
    Setup(String),
}

impl ResolverError {
    /// Whether `[egress.resolver]` has to be edited.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(self, Self::Keys(_) | Self::Tls(_))
    }
}

/// Finds what makes [`Resolver::new`] fail, except the system's own configuration.
pub(crate) fn check(settings: &Settings) -> Result<(), ResolverError> {
    settings.check()?;
    tls(settings).map(drop)
}

/// Of a connection to name servers that show a certificate; none for other kinds.
fn tls(settings: &Settings) -> Result<Option<Arc<ClientConfig>>, ResolverError> {
    let is_over_tls = settings.kind.is_over_tls();
    let config = is_over_tls.then(|| store_client_config(settings.ca.as_deref(), None));
    Ok(config.transpose()?)
}

/// The name servers, and how they are asked.
fn parts(settings: &Settings) -> Result<(Vec<NameServerConfig>, ResolverOpts), ResolverError> {
    check(settings)?;
    if settings.kind == ResolverKind::System {
        let (system, options) =
            read_system_conf().map_err(|error| ResolverError::System(error.to_string()))?;
        return Ok((system.name_servers().to_vec(), options));
    }
    let mut options = ResolverOpts::default();
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = settings.timeout.get();
    options.max_active_requests = MOST_QUESTIONS;
    Ok((settings.servers.iter().map(|server| name_server(settings, server)).collect(), options))
}

impl Resolver {
    pub(crate) fn new(settings: &Settings) -> Result<Self, ResolverError> {
        let (servers, options) = parts(settings)?;
        let kept = [settings.min_ttl.get(), settings.max_ttl.get()];
        Self::of(servers, options, tls(settings)?, kept)
            .map_err(|error| ResolverError::Setup(error.to_string()))
    }

    fn of(
        servers: Vec<NameServerConfig>,
        options: ResolverOpts,
        tls: Option<Arc<ClientConfig>>,
        kept: [Duration; 2],
    ) -> Result<Self, NetError> {
        let ended = |ended: &LookupEnded| {
            from_zero(counter!(catalogue::LOOKUPS, LookupEnded::LABEL => ended.as_str()))
        };
        Ok(Self {
            resolver: Self::build(servers, options, tls)?,
            answers: Mutex::default(),
            kept,
            ended: LookupEnded::ALL.iter().map(ended).collect(),
        })
    }

    /// What asks these servers, and keeps nothing.
    fn build(
        servers: Vec<NameServerConfig>,
        mut options: ResolverOpts,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<TokioResolver, NetError> {
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        options.ip_strategy = LookupIpStrategy::Ipv6AndIpv4;
        options.cache_size = 0; // it is bounded by answers, whatever their size
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        if let Some(tls) = tls {
            builder = builder.with_tls_config(Arc::unwrap_or_clone(tls));
        }
        builder.build()
    }

    /// Addresses of a name, those of IPv6 first: `dial` begins with the first family.
    pub(crate) async fn resolve(&self, name: &str, deadline: Instant) -> Result<Vec<IpAddr>, Refusal> {
        let known = self.answers.lock().find(name, Instant::now());
        let (ended, addresses) = match known {
            Some(addresses) if addresses.is_empty() => (LookupEnded::FailedBefore, addresses),
            Some(addresses) => (LookupEnded::Kept, addresses),
            None => match timeout_at(deadline, self.resolver.lookup_ip(name)).await {
                Ok(found) => self.remember(name, found.ok().as_ref()),
                Err(_) => {
                    self.ended[LookupEnded::TimedOut as usize].increment(1);
                    return Err(Refusal::ResolveTimeout);
                }
            },
        };
        self.ended[ended as usize].increment(1);
        if addresses.is_empty() { Err(Refusal::Unresolved) } else { Ok(addresses) }
    }

    fn remember(&self, name: &str, found: Option<&LookupIp>) -> (LookupEnded, Vec<IpAddr>) {
        let now = Instant::now();
        let all: Vec<IpAddr> = found.into_iter().flat_map(LookupIp::iter).collect();
        let addresses = of_both_families(&all);
        let (ended, until) = match found {
            Some(found) if !addresses.is_empty() => {
                let ttl = Instant::from(found.valid_until()).saturating_duration_since(now);
                (LookupEnded::Found, now + ttl.max(self.kept[0]).min(self.kept[1]))
            }
            _ => (LookupEnded::Failed, now + FAILED),
        };
        self.answers.lock().remember(name, &addresses, until, now);
        (ended, addresses)
    }
}

/// A name server of the operator's choice.
fn name_server(settings: &Settings, server: &NameServer) -> NameServerConfig {
    let name = || Arc::from(settings.name.as_deref().unwrap_or_default());
    let mut connections = match settings.kind {
        ResolverKind::System | ResolverKind::Udp => vec![ConnectionConfig::udp(), ConnectionConfig::tcp()],
        ResolverKind::Tcp => vec![ConnectionConfig::tcp()],
        ResolverKind::Tls => vec![ConnectionConfig::tls(name())],
        ResolverKind::Https => vec![ConnectionConfig::https(name(), Some(settings.path.as_str().into()))],
    };
    if let Some(port) = server.port {
        connections.iter_mut().for_each(|connection| connection.port = port);
    }
    NameServerConfig::new(server.address, true, connections)
}

/// The first addresses, half of them of IPv4 where there are that many, so that a name with many of one family does not
/// lose the other one.
fn of_both_families(all: &[IpAddr]) -> Vec<IpAddr> {
    let (mut v6, mut v4): (Vec<IpAddr>, Vec<IpAddr>) = all.iter().partition(|address| address.is_ipv6());
    v4.truncate(MOST_ADDRESSES - v6.len().min(MOST_ADDRESSES / 2));
    v6.truncate(MOST_ADDRESSES - v4.len());
    v6.append(&mut v4);
    v6
}

/// What is known of names, and until when: their addresses, or none.
#[derive(Default)]
struct Answers(HashMap<Box<str>, (Box<[IpAddr]>, Instant)>);

impl Answers {
    fn find(&self, name: &str, now: Instant) -> Option<Vec<IpAddr>> {
        self.0.get(name).filter(|(_, until)| now < *until).map(|(addresses, _)| addresses.to_vec())
    }

    fn remember(&mut self, name: &str, addresses: &[IpAddr], until: Instant, now: Instant) {
        if self.0.len() >= MOST_NAMES && !self.0.contains_key(name) {
            self.0.retain(|_, (_, until)| now < *until);
            if self.0.len() >= MOST_NAMES {
                self.0.clear(); // names that live long must not keep all others out
            }
        }
        self.0.insert(name.into(), (addresses.into(), until));
    }
}
