//! Resolution of names, by the system's configuration (/etc/resolv.conf and /etc/hosts) or by name servers of the operator's
//! choice. Search domains never apply: a client's name means the same through every gateway.

use crate::config::{NameServer, ResolverConfig as Settings, ResolverKind};
use crate::error::StartError;
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
use postern_daemon::seldom::Seldom;
use postern_daemon::tls::{ClientConfig, store_client_config};
use postern_net::{Families, RESOLUTION_DELAY};
use postern_telemetry::metrics::from_zero;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

mod system;
#[cfg(test)]
mod tests;

use system::{Hosts, Stamps, System};

/// Lifetime of a cached failure. Short, because while a name server is down every query fails; and repeated queries are
/// bounded, because each costs a token.
const FAILED: Duration = Duration::from_secs(1);
/// Maximum lifetime of a cached answer, whatever its time to live.
const LONGEST_KEPT: Duration = Duration::from_secs(86_400);
/// Maximum addresses that are kept per family. A name can have thousands, and `connect` tries few.
const MOST_ADDRESSES: usize = 8;
/// Maximum cached names: at most 253 bytes each, and their addresses, so some 5 MiB.
const MOST_NAMES: usize = 8192;

/// Maximum concurrent queries on one connection to a server. Each belongs to a tunnel, and tunnels are bounded.
const MOST_QUESTIONS: usize = 4096;

/// Interval at which the system's files are inspected: they change when a laptop moves, or a container's network changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A caching resolver: equal queries in flight are merged, and answers are kept for their time to live. Each worker has a
/// separate resolver, because its background tasks live on the worker's runtime.
pub(crate) struct Resolver {
    resolver: TokioResolver,
    only_v4: bool,
    hosts: Hosts,
    answers: Mutex<Answers>,
    ended: Vec<Counter>,
}

/// Checks the settings, and returns the TLS configuration for name servers that present a certificate; `None` for other kinds.
pub(crate) fn tls(settings: &Settings) -> Result<Option<Arc<ClientConfig>>, StartError> {
    settings.check().map_err(StartError::Config)?;
    let is_over_tls = settings.kind.is_over_tls();
    let config = is_over_tls.then(|| store_client_config(settings.ca.as_deref(), None));
    config.transpose().map_err(StartError::tls("egress.resolver"))
}

/// Returns the name servers, and options of queries.
fn servers(settings: &Settings) -> System {
    if settings.kind == ResolverKind::System {
        return System::read();
    }
    let mut options = ResolverOpts::default();
    options.timeout = settings.timeout.get();
    let servers = settings.servers.iter().map(|server| name_server(settings, server)).collect();
    System { servers, options, only_v4: false }
}

impl Resolver {
    pub(crate) fn new(settings: &Settings) -> Result<Self, StartError> {
        let (tls, System { servers, options, only_v4 }) = (tls(settings)?, servers(settings));
        let is_system = settings.kind == ResolverKind::System;
        Ok(Self {
            resolver: build(servers, options, tls)?,
            only_v4,
            hosts: if is_system { Hosts::read() } else { Hosts::default() },
            answers: Mutex::default(),
            ended: LookupEnded::ALL
                .iter()
                .map(|ended| from_zero(counter!(catalogue::LOOKUPS, LookupEnded::LABEL => ended.as_str())))
                .collect(),
        })
    }

    /// Returns the result of `judge` for the first addresses of a name that it accepts, and the addresses that arrive later. If
    /// `judge` accepts none, returns its refusal of those that arrived.
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

    /// Returns the addresses of a name, and the end of the lookup if addresses, or their absence, are already known.
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
            _ => known.iter().flatten().any(|known| !known.is_empty()).then_some(LookupEnded::Kept),
        };
        // Known addresses do not wait for others: an answer that never arrives would cost each tunnel the delay.
        let delay = if ended.is_some() { Duration::ZERO } else { RESOLUTION_DELAY };
        let [v6, v4] = known;
        let families = Families::asked(delay, self.ask(name, Family::V6, v6), self.ask(name, Family::V4, v4));
        (families, ended)
    }

    /// Returns the addresses of one family, from `known` or by a query.
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
                now + ttl.min(LONGEST_KEPT)
            }
            _ => now + FAILED,
        };
        self.answers.lock().remember(name, family, &addresses, until, now);
        Ok(addresses)
    }
}

/// Converts a name for a query: its labels may have any octets, and no search domain is added.
fn question(name: &str) -> io::Result<Name> {
    Name::from_labels(name.split('.').map(str::as_bytes)).map_err(io::Error::other)
}

/// Builds a resolver for these servers that caches nothing.
fn build(
    servers: Vec<NameServerConfig>,
    mut options: ResolverOpts,
    tls: Option<Arc<ClientConfig>>,
) -> Result<TokioResolver, StartError> {
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    options.use_hosts_file = ResolveHosts::Never; // hickory omits some names of it
    options.cache_size = 0; // hickory's cache is bounded by answers, not by size
    options.max_active_requests = MOST_QUESTIONS;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    if let Some(tls) = tls {
        builder = builder.with_tls_config(Arc::unwrap_or_clone(tls));
    }
    builder.build().map_err(|error| StartError::Machine(format!("cannot set up the resolver: {error}")))
}

/// Builds the settings of a name server of the operator's choice.
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

/// Cached answers by name and family, with their expiry. An empty list means that the name has no such address.
#[derive(Default)]
struct Answers(HashMap<Box<str>, [Option<Known>; 2]>);

#[derive(Clone)]
struct Known {
    addresses: Box<[IpAddr]>,
    until: Instant,
}

impl Answers {
    /// Returns the IPv6 and the IPv4 addresses; `None` for a family without a valid answer.
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
                self.0.clear(); // names with long lifetimes must not exclude all others
            }
        }
        let known = self.0.entry(name.into()).or_default();
        known[family as usize] = Some(Known { addresses: addresses.into(), until });
    }
}

pub(crate) struct OneServer {
    pub(crate) address: SocketAddr,
    resolver: TokioResolver,
}

/// Returns a resolver for each name server, for an operator: in a resolver of all, the others conceal one that does not answer.
pub(crate) fn each_server(settings: &Settings) -> Result<Vec<OneServer>, StartError> {
    let System { servers, mut options, .. } = servers(settings);
    options.attempts = 1;
    let one = |server: NameServerConfig| {
        let port = server.connections.first().map_or(53, |connection| connection.port);
        let (address, tls) = (SocketAddr::new(server.ip, port), tls(settings)?);
        Ok(OneServer { address, resolver: build(vec![server], options.clone(), tls)? })
    };
    servers.into_iter().map(one).collect()
}

impl OneServer {
    /// Sends a query for the servers of the root zone. Returns the time until any answer, or the reason why there is none.
    pub(crate) async fn ask(&self) -> Result<Duration, String> {
        let began = Instant::now();
        match self.resolver.lookup(Name::root(), RecordType::NS).await {
            Err(error) if !error.is_no_records_found() => Err(error.to_string()),
            _ => Ok(began.elapsed()),
        }
    }
}

/// A worker's resolver, rebuilt when its settings or the system's files change.
pub(crate) struct CurrentResolver(Mutex<Made>);

/// A resolver, and the inputs from which it was built.
struct Made {
    settings: Arc<Settings>,
    /// `None` if the resolver is an earlier one, because that of these settings and files could not be built.
    files: Option<Stamps>,
    looked: Instant,
    resolver: Arc<Resolver>,
}

impl CurrentResolver {
    pub(crate) fn new(settings: &Arc<Settings>) -> Result<Self, StartError> {
        let files = Some(stamps(settings)); // before the files are read, so a concurrent change is read later
        let resolver = Arc::new(Resolver::new(settings)?);
        let made = Made { settings: Arc::clone(settings), files, looked: Instant::now(), resolver };
        Ok(Self(Mutex::new(made)))
    }

    /// Returns the resolver for these settings and the system's files. Rebuilds it if either differs from the last one's; if
    /// that fails, the last one stays, because a gateway without a resolver would refuse every name, and it is tried again.
    pub(crate) fn of(&self, settings: &Arc<Settings>) -> Arc<Resolver> {
        let (made, now) = (&mut *self.0.lock(), Instant::now());
        let is_same = Arc::ptr_eq(&made.settings, settings);
        if is_same && now.saturating_duration_since(made.looked) < LOOK_EVERY {
            return Arc::clone(&made.resolver);
        }
        let files = stamps(settings);
        made.looked = now;
        if is_same && made.files.as_ref() == Some(&files) {
            return Arc::clone(&made.resolver);
        }
        match Resolver::new(settings) {
            Ok(resolver) => {
                if is_same && made.files.is_some() {
                    report();
                }
                (made.resolver, made.files) = (Arc::new(resolver), Some(files));
            }
            Err(error) => {
                tracing::error!(%error, "the resolver of [egress.resolver] cannot be set up; the one before stays in use");
                made.files = None;
            }
        }
        made.settings = Arc::clone(settings);
        Arc::clone(&made.resolver)
    }
}

/// Returns the stamps of the files that a resolver reads: none for name servers of the operator's choice.
fn stamps(settings: &Settings) -> Stamps {
    if settings.kind == ResolverKind::System { Stamps::look() } else { Stamps::default() }
}

/// Logs a change once for all workers.
fn report() {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(10));
    if REPORTED.due(std::time::Instant::now()).is_some() {
        tracing::info!("the system's name servers and hosts have changed, and are read again");
    }
}
