//! The one conversion from a configuration to settings, which cannot be invalid, and the opening of the store that they name.

use crate::config::{
    AccessLog, CheckTiming, Config, Limits, MemcachedConfig, ResolverConfig, StoreConfig, StoreKind,
    StoreTls, TransportKind,
};
use crate::error::StartError;
use crate::keys::keyring::CLOCK_TOLERANCE;
use crate::keys::offer::{KeyTypes, Offer};
use crate::keys::source::Source;
use crate::request::egress::Policy;
use crate::request::resolve;
use postern_config::ConfigDuration;
use postern_daemon::descriptors::Descriptors;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::tls::{self, TlsConfig};
use postern_spend::memcached::{AddressError, Memcached, Options, Replicas, Tls, Transport};
use postern_spend::{Backend, Embedded, Fsync, Marks};
use postern_token::UnixSeconds;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Maximum connections in one pool. memcached's default limit for all clients is 1,024.
const MOST_POOLED: usize = 10_000;
/// Pipelined transport: unanswered commands per connection. Each worker has one connection to each address: a worker is one
/// thread and cannot fill a second connection.
const QUEUE: usize = 4_096;
/// Interval at which the watch inspects the marks.
const INTERVAL: Duration = Duration::from_secs(1);

/// What one reading of the configuration asks for. Nothing is opened yet.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Limits of connections and requests. A connection keeps those with which it began.
    pub(crate) limits: Arc<Limits>,
    /// Egress policy. It judges each request, also on older connections.
    pub(crate) policy: Arc<Policy>,
    /// Settings of resolvers. A reload replaces the `Arc` only if they differ: workers then rebuild their resolvers.
    pub(crate) resolver: Arc<ResolverConfig>,
    pub(crate) source: Source,
    pub(crate) offer: Offer,
    pub(crate) store: StoreSettings,
    pub(crate) access: AccessLog,
    pub(crate) check_timing: CheckTiming,
    pub(crate) http2: bool,
    pub(crate) require_host: bool,
    /// Load balancers, whose connections begin with a PROXY header.
    pub(crate) balancers: Balancers,
}

impl Settings {
    /// Reads the files that the configuration names, except those of the listeners. What is unchanged since `before` is kept.
    pub(crate) fn of(
        config: &Config,
        key_types: &KeyTypes,
        descriptors: Descriptors,
        before: Option<&Self>,
    ) -> Result<Self, StartError> {
        config.check().map_err(StartError::Config)?;
        resolve::tls(&config.egress.resolver)?;
        let source = Source::new(config)?;
        let offer = Offer::new(&config.challenge, source.types, key_types.clone())
            .map_err(|error| StartError::Config(format!("challenge: {error}")))?;
        let next_hops = before.map(|before| before.policy.next_hops.clone()).unwrap_or_default();
        let kept = before.map(|before| &before.resolver).filter(|kept| ***kept == config.egress.resolver);
        // Two descriptors for a connection: no token is spent without a descriptor for its tunnel.
        let connections = descriptors.connections("[limits] connections", config.limits.connections, 2);
        Ok(Self {
            limits: Arc::new(Limits { connections, ..config.limits.clone() }),
            policy: Arc::new(Policy::after(&next_hops, &config.egress)?),
            resolver: kept.map_or_else(|| Arc::new(config.egress.resolver.clone()), Arc::clone),
            store: StoreSettings::of(&config.store, offer.marks())?,
            source,
            offer,
            access: config.log.access,
            check_timing: config.store.memcached.hint,
            http2: config.listen.http2,
            require_host: config.listen.require_host,
            balancers: config.listen.proxy_protocol.clone(),
        })
    }
}

/// Returns the error with which a start with this configuration would fail. Reads files such as certificates, but opens no
/// socket, takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], with what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    Settings::of(config, &KeyTypes::default(), Descriptors::default(), None)?;
    config.tls.as_ref().map(TlsConfig::load).transpose().map_err(StartError::tls("tls"))?;
    check_peers(config)?;
    Ok(config.tracing.check()?)
}

/// Rejects an authority that signs both clients and peers: any client with a certificate would be a peer.
fn check_peers(config: &Config) -> Result<(), StartError> {
    let Some(peers) = &config.peers else { return Ok(()) };
    peers.tls().load().map_err(StartError::tls("peers"))?;
    let of_clients = config.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
    let is_same = |ca: &PathBuf| {
        *ca == peers.client_ca || std::fs::read(ca).ok() == std::fs::read(&peers.client_ca).ok() // both are readable
    };
    if of_clients.is_some_and(is_same) {
        return refused(
            "peers.client_ca and tls.client_ca are the same authority: every client with a certificate could open tunnels without \
             tokens at peers.address; have the certificates of your gateways signed by a separate authority",
        );
    }
    Ok(())
}

fn refused<T>(sentence: impl Into<String>) -> Result<T, StartError> {
    Err(StartError::Config(sentence.into()))
}

/// The double-spend store.
#[derive(Clone)]
pub(crate) enum StoreSettings {
    Embedded { path: PathBuf, fsync: Fsync, marks: Marks },
    Memcached(Box<Options>),
}

impl StoreSettings {
    fn of(config: &StoreConfig, marks: Marks) -> Result<Self, StartError> {
        match config.kind {
            StoreKind::Embedded => {
                Ok(Self::Embedded { path: config.path.clone(), fsync: config.fsync, marks })
            }
            StoreKind::Memcached => options(&config.memcached, marks).map(Box::new).map(Self::Memcached),
        }
    }

    /// Opens the store for `workers` workers; of a shared one, `open` stays in use. Blocks while an embedded store is loaded. A
    /// shared store connects in the background, and reads the TCP statistics of commands slower than `slow`.
    pub(crate) fn open(
        &self,
        workers: usize,
        slow: Duration,
        open: Option<&Memcached>,
    ) -> Result<Backend, StartError> {
        match self {
            Self::Embedded { path, fsync, marks } => {
                let store = Embedded::open(path, *fsync, UnixSeconds::now())?;
                store.bind(marks.clone());
                Ok(Backend::Embedded(Arc::new(store)))
            }
            Self::Memcached(options) => {
                log_transport(options, workers);
                let options = Options { slow, ..Options::clone(options) };
                let opened = match open {
                    Some(open) => open.reopen(options),
                    None => Memcached::open(options),
                };
                opened
                    .map(Backend::Memcached)
                    .map_err(|error| StartError::Machine(format!("cannot open the shared store: {error}")))
            }
        }
    }
}

fn log_transport(options: &Options, workers: usize) {
    let addresses = options.replicas.addresses().count();
    match &options.transport {
        Transport::Pipelined { .. } => {
            tracing::info!(addresses, workers, "the double-spend store is shared, commands are pipelined");
        }
        Transport::Pooled { size, .. } => tracing::info!(
            addresses,
            workers,
            connections = size,
            "the double-spend store is shared, commands are pooled: `connections` for each worker and address"
        ),
    }
}

fn options(config: &MemcachedConfig, marks: Marks) -> Result<Options, StartError> {
    // Values outside the plausible range would fail later with a less helpful message.
    within("pool_size", config.pool_size, 1, MOST_POOLED)?;
    within("timeout", config.timeout, ConfigDuration::millis(1), ConfigDuration::minutes(1))?;
    let timeout = config.timeout.get();
    let transport = match config.transport {
        TransportKind::Pipelined => Transport::Pipelined { queue: QUEUE },
        TransportKind::Pooled => {
            Transport::Pooled { size: config.pool_size, checkout_timeout: config.timeout.get() }
        }
    };
    Ok(Options {
        tls: config.tls.as_ref().map(store_tls).transpose()?,
        replicas: replicas(config)?,
        transport,
        timeout,
        slow: Duration::MAX, // until the store is opened
        connect_timeout: timeout * 5 / 2,
        interval: INTERVAL,
        clock_tolerance: CLOCK_TOLERANCE,
        marks,
        cache_bytes: config.spent_cache.as_usize(),
    })
}

/// Parses the addresses of one set of servers, or of three replicas.
pub(crate) fn replicas(config: &MemcachedConfig) -> Result<Replicas, StartError> {
    let parsed = |list: &[String]| {
        let parsed: Result<_, AddressError> = list.iter().map(|text| text.parse()).collect();
        parsed.map_err(|error| StartError::Config(format!("store.memcached.addresses: {error}")))
    };
    let need = |what: &str| refused(format!("store.memcached.replicas needs {what}"));
    match (config.addresses.as_slice(), config.replicas.as_slice()) {
        ([], []) => refused(
            "store.memcached.addresses: kind = \"memcached\" needs at least one, such as [\"127.0.0.1:11211\"]",
        ),
        (addresses, []) => Ok(Replicas::One(parsed(addresses)?)),
        ([], [a, b, c]) if ![a, b, c].iter().any(|list| list.is_empty()) => {
            if config.transport == TransportKind::Pooled {
                return need("transport = \"pipelined\": a pool cannot leave a slow replica behind");
            }
            if [(a, b), (a, c), (b, c)].iter().any(|(one, other)| one.iter().any(|text| other.contains(text)))
            {
                return need("different servers in each list: these would vote twice");
            }
            Ok(Replicas::Three([parsed(a)?, parsed(b)?, parsed(c)?]))
        }
        ([], _) => need("three lists of addresses, none of them empty"),
        _ => need("store.memcached.addresses to be empty: each replica has its own"),
    }
}

fn within<T: PartialOrd + ToString>(key: &str, found: T, least: T, most: T) -> Result<(), StartError> {
    if (&least..=&most).contains(&&found) {
        return Ok(());
    }
    let [found, least, most] = [found, least, most].map(|value| value.to_string());
    refused(format!("store.memcached.{key} is {found}, and must be between {least} and {most}"))
}

/// Builds the TLS settings for the store's addresses. Reads the certificate files.
pub(crate) fn store_tls(config: &StoreTls) -> Result<Tls, StartError> {
    let own = match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => return refused("store.memcached.tls: certificate and key go together; give both or neither"),
    };
    let client = tls::store_client_config(config.ca.as_deref(), own);
    let client = client.map_err(StartError::tls("store.memcached.tls"))?;
    Ok(Tls { config: client, server_name: config.server_name.clone() })
}
