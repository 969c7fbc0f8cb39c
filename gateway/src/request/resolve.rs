//! Names to addresses, by the system's configuration (/etc/resolv.conf and /etc/hosts) or by name servers of the operator's
//! choice, without search domains: a client's name means the same through every gateway.

use crate::config::{NameServer, ResolverConfig as Settings, ResolverConfigError, ResolverKind};
use crate::observe::catalogue;
use crate::observe::labels::LookupEnded;
use crate::request::deny::Refusal;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RecordType};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use postern_daemon::tls::{ClientConfig, TlsError, store_client_config};
use postern_lookup::{Families, RESOLUTION_DELAY};
use postern_telemetry::metrics::from_zero;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

mod current;
mod each;
mod system;
#[cfg(test)]
mod tests;

pub(crate) use current::CurrentResolver;
pub(crate) use each::{Asked, each_server};
use system::{Hosts, System};

/// How long a failure is remembered. A name server that is down fails each question for it, and a token buys a question.
const FAILED: Duration = Duration::from_secs(1);
/// Addresses that are kept of one family. A name can have thousands, and `connect` tries few.
const MOST_ADDRESSES: usize = 8;
/// Names of which the answer is remembered: 253 bytes each at most, and the addresses, so some 5 MiB.
const MOST_NAMES: usize = 8192;

/// Questions that wait at once on one connection to a server. Each is a tunnel's, and these are bounded.
const MOST_QUESTIONS: usize = 4096;

/// A caching resolver: equal questions in flight are one, and answers are kept for their time to live. Each worker has its
/// own, since its background tasks live on the worker's runtime.
pub(crate) struct Resolver {
    resolver: TokioResolver,
    only_v4: bool,
    hosts: Hosts,
    answers: Mutex<Answers>,
    /// How long answers are kept, at least and at most.
    kept: [Duration; 2],
    ended: Vec<Counter>,
}

/// Why the configuration of the resolver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
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

/// Finds what makes [`Resolver::new`] fail.
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

/// Whom to ask, and how.
struct Parts {
    servers: Vec<NameServerConfig>,
    options: ResolverOpts,
    /// Names have no addresses of IPv6.
    only_v4: bool,
}

fn parts(settings: &Settings) -> Result<Parts, ResolverError> {
    check(settings)?;
    if settings.kind == ResolverKind::System {
        let System { servers, options, only_v4 } = System::read();
        return Ok(Parts { servers, options, only_v4 });
    }
    let mut options = ResolverOpts::default();
    options.timeout = settings.timeout.get();
    let servers = settings.servers.iter().map(|server| name_server(settings, server)).collect();
    Ok(Parts { servers, options, only_v4: false })
}

impl Resolver {
    pub(crate) fn new(settings: &Settings) -> Result<Self, ResolverError> {
        let Parts { servers, options, only_v4 } = parts(settings)?;
        let is_system = settings.kind == ResolverKind::System;
        Ok(Self {
            resolver: build(servers, options, tls(settings)?)?,
            only_v4,
            hosts: if is_system { Hosts::read() } else { Hosts::default() },
            answers: Mutex::default(),
            kept: [settings.min_ttl.get(), settings.max_ttl.get()],
            ended: LookupEnded::ALL
                .iter()
                .map(|ended| from_zero(counter!(catalogue::LOOKUPS, LookupEnded::LABEL => ended.as_str())))
                .collect(),
        })
    }

    /// What `judge` makes of the first addresses of a name that are of use to it, and those that come later. Where none are, it is
    /// the refusal of those that came.
    pub(crate) async fn resolve<'a, T>(
        &'a self,
        name: &'a str,
        deadline: Instant,
        mut judge: impl FnMut(&[IpAddr]) -> Result<T, Refusal>,
    ) -> Result<(T, Families<'a, IpAddr>), Refusal> {
        let (mut families, known) = self.find(name);
        let mut refusal = None;
        let judge = |found: &[IpAddr]| judge(found).map_err(|refused| refusal = Some(refused)).ok();
        let first = timeout_at(deadline, families.first(judge)).await;
        let ended = match (known, families.found().is_empty(), &first) {
            (Some(LookupEnded::Kept), ..) => LookupEnded::Kept,
            (_, false, _) => LookupEnded::Found,
            (Some(ended), ..) => ended,
            (None, true, Ok(_)) => LookupEnded::Failed,
            (None, true, Err(_)) => LookupEnded::TimedOut,
        };
        self.ended[ended as usize].increment(1);
        match (first, refusal) {
            (Ok(Some(useful)), _) => Ok((useful, families)),
            (_, Some(refusal)) => Err(refusal),
            (Ok(None), None) => Err(Refusal::Unresolved),
            (Err(_), None) => Err(Refusal::ResolveTimeout),
        }
    }

    /// The addresses of a name, and whether they, or that there are none, are known.
    fn find<'a>(&'a self, name: &'a str) -> (Families<'a, IpAddr>, Option<LookupEnded>) {
        if let Some(addresses) = self.hosts.find(name) {
            return (Families::known(addresses), Some(LookupEnded::Kept));
        }
        let mut known = self.answers.lock().find(name, Instant::now());
        if self.only_v4 {
            known[Family::V6 as usize] = Some(Vec::new());
        }
        let ended = match &known {
            [Some(v6), Some(v4)] if v6.is_empty() && v4.is_empty() => Some(LookupEnded::FailedBefore),
            [v6, v4] => [v6, v4]
                .iter()
                .any(|known| known.as_ref().is_some_and(|known| !known.is_empty()))
                .then_some(LookupEnded::Kept),
        };
        // Addresses that are known wait for no others: an answer that never comes would cost each tunnel the delay.
        let delay = if ended.is_some() { Duration::ZERO } else { RESOLUTION_DELAY };
        let [v6, v4] = known;
        let families = Families::asked(delay, self.ask(name, Family::V6, v6), self.ask(name, Family::V4, v4));
        (families, ended)
    }

    /// The addresses of one family, which may be known.
    async fn ask(&self, name: &str, family: Family, known: Option<Vec<IpAddr>>) -> io::Result<Vec<IpAddr>> {
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.resolver.lookup(question(name)?, family.record_type()).await.ok();
        let now = Instant::now();
        let all = found.iter().flat_map(|found| found.answers()).filter_map(|record| record.data.ip_addr());
        let addresses: Vec<IpAddr> =
            all.filter(|address| family.has(*address)).take(MOST_ADDRESSES).collect();
        let until = match found {
            Some(found) if !addresses.is_empty() => {
                let ttl = Instant::from(found.valid_until()).saturating_duration_since(now);
                now + ttl.max(self.kept[0]).min(self.kept[1])
            }
            _ => now + FAILED,
        };
        self.answers.lock().remember(name, family, &addresses, until, now);
        Ok(addresses)
    }
}

/// A name as it is sent: whatever octets its labels have, and without search domains.
fn question(name: &str) -> io::Result<Name> {
    Name::from_labels(name.split('.').map(str::as_bytes)).map_err(io::Error::other)
}

/// What asks these servers, and keeps nothing.
fn build(
    servers: Vec<NameServerConfig>,
    mut options: ResolverOpts,
    tls: Option<Arc<ClientConfig>>,
) -> Result<TokioResolver, ResolverError> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    options.use_hosts_file = ResolveHosts::Never; // it would leave out names
    options.cache_size = 0; // it is bounded by answers, whatever their size
    options.max_active_requests = MOST_QUESTIONS;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    if let Some(tls) = tls {
        builder = builder.with_tls_config(Arc::unwrap_or_clone(tls));
    }
    builder.build().map_err(|error| ResolverError::Setup(error.to_string()))
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

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V6,
    V4,
}

impl Family {
    const fn record_type(self) -> RecordType {
        match self {
            Self::V6 => RecordType::AAAA,
            Self::V4 => RecordType::A,
        }
    }

    const fn has(self, address: IpAddr) -> bool {
        address.is_ipv6() == matches!(self, Self::V6)
    }
}

/// What is known of names, by family, and until when: addresses, or that there are none.
#[derive(Default)]
struct Answers(HashMap<Box<str>, [Option<Known>; 2]>);

#[derive(Clone)]
struct Known {
    addresses: Box<[IpAddr]>,
    until: Instant,
}

impl Answers {
    /// Those of IPv6, and those of IPv4.
    fn find(&self, name: &str, now: Instant) -> [Option<Vec<IpAddr>>; 2] {
        let Some(known) = self.0.get(name) else { return [None, None] };
        [Family::V6, Family::V4].map(|family| {
            let known = known[family as usize].as_ref()?;
            (now < known.until).then(|| known.addresses.to_vec())
        })
    }

    fn remember(&mut self, name: &str, family: Family, addresses: &[IpAddr], until: Instant, now: Instant) {
        if self.0.len() >= MOST_NAMES && !self.0.contains_key(name) {
            self.0.retain(|_, known| known.iter().flatten().any(|known| now < known.until));
            if self.0.len() >= MOST_NAMES {
                self.0.clear(); // names that live long must not keep all others out
            }
        }
        let known = self.0.entry(name.into()).or_default();
        known[family as usize] = Some(Known { addresses: addresses.into(), until });
    }
}
