//! Opens the double-spend store that the configuration selects.

use crate::config::{MemcachedConfig, StoreConfig, StoreKind, StoreTls, TransportKind};
use crate::keys::keyring::CLOCK_TOLERANCE;
use postern_config::ConfigDuration;
use postern_daemon::tls::{self, TlsError};
use postern_spend::memcached::{AddressError, Memcached, Options, Replicas, Tls, Transport};
use postern_spend::{Backend, Embedded, Marks, Store, StoreError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Maximum connections in one pool. memcached's default limit for all clients is 1,024.
const MOST_POOLED: usize = 10_000;
/// Pipelined transport: unanswered commands per connection. Each worker has one connection to each address: a worker is one
/// thread and cannot fill a second connection.
const QUEUE: usize = 4_096;
/// Interval at which the watch inspects the marks.
const INTERVAL: Duration = Duration::from_secs(1);

/// An error when opening the store.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The embedded store cannot be opened.
    #[error(transparent)]
    Embedded(#[from] StoreError),
    /// No address is configured.
    #[error(
        "store.memcached.addresses: kind = \"memcached\" needs at least one, such as [\"127.0.0.1:11211\"]"
    )]
    NoAddress,
    /// The replica lists are neither one nor three.
    #[error("store.memcached.replicas needs {0}")]
    Replicas(&'static str),
    /// An address is invalid.
    #[error("store.memcached.addresses: {0}")]
    Address(#[from] AddressError),
    /// A certificate file cannot be used.
    #[error("store.memcached.tls: {0}")]
    Tls(#[from] TlsError),
    /// Only one of certificate and key is set.
    #[error("store.memcached.tls: certificate and key go together; give both or neither")]
    HalfIdentity,
    /// A number or a duration is out of range; with its key, the value, and the bounds.
    #[error("store.memcached.{0} is {1}, and must be between {2} and {3}")]
    Bounds(&'static str, String, String, String),
    /// The shared store cannot be opened, for example because its thread does not start.
    #[error("cannot open the shared store: {0}")]
    Start(io::Error),
}

impl BackendError {
    /// Returns `true` if the configuration is at fault, `false` if the machine is.
    pub(crate) const fn is_configuration(&self) -> bool {
        !matches!(self, Self::Embedded(_) | Self::Start(_))
    }
}

/// Opens the store for `workers` workers. Blocks while an embedded store is loaded. A shared store connects in the background,
/// and reads the TCP statistics of commands slower than `slow`.
pub(crate) fn open(
    config: &StoreConfig,
    marks: Marks,
    workers: usize,
    slow: Duration,
) -> Result<Backend, BackendError> {
    match config.kind {
        StoreKind::Embedded => {
            let store = Embedded::open(&config.path, config.fsync)?;
            store.bind(marks);
            Ok(Backend::Embedded(Arc::new(store)))
        }
        StoreKind::Memcached => {
            let options = options(&config.memcached, marks, slow)?;
            log_settings(&options, workers);
            Ok(Backend::Memcached(Memcached::open(options).map_err(BackendError::Start)?))
        }
    }
}

/// Opens the same shared store with other options, while `open` stays in use.
pub(crate) fn reopen(
    open: &Memcached,
    config: &MemcachedConfig,
    marks: Marks,
    workers: usize,
    slow: Duration,
) -> Result<Memcached, BackendError> {
    let options = options(config, marks, slow)?;
    log_settings(&options, workers);
    open.reopen(options).map_err(BackendError::Start)
}

/// Returns the configuration error with which [`open`] would fail, without opening the store.
pub(crate) fn check(config: &StoreConfig, marks: Marks) -> Result<(), BackendError> {
    match config.kind {
        StoreKind::Embedded => Ok(()),
        StoreKind::Memcached => options(&config.memcached, marks, Duration::MAX).map(drop),
    }
}

fn log_settings(options: &Options, workers: usize) {
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

fn options(config: &MemcachedConfig, marks: Marks, slow: Duration) -> Result<Options, BackendError> {
    // Values outside the plausible range would fail later with a less helpful message.
    within("pool_size", config.pool_size, 1, MOST_POOLED)?;
    within("timeout", config.timeout, ConfigDuration::millis(1), ConfigDuration::minutes(1))?;
    let transport = match config.transport {
        TransportKind::Pipelined => Transport::Pipelined { queue: QUEUE },
        TransportKind::Pooled => {
            Transport::Pooled { size: config.pool_size, checkout_timeout: config.timeout.get() }
        }
    };
    let timeout = config.timeout.get();
    Ok(Options {
        tls: config.tls.as_ref().map(store_tls).transpose()?,
        replicas: replicas(config)?,
        transport,
        timeout,
        slow,
        connect_timeout: timeout * 5 / 2,
        interval: INTERVAL,
        clock_tolerance: CLOCK_TOLERANCE,
        marks,
        cache_bytes: config.spent_cache.as_usize(),
    })
}

/// Parses the addresses of one set of servers, or of three replicas.
pub(crate) fn replicas(config: &MemcachedConfig) -> Result<Replicas, BackendError> {
    let parsed = |list: &[String]| list.iter().map(|text| text.parse()).collect::<Result<_, AddressError>>();
    match (config.addresses.as_slice(), config.replicas.as_slice()) {
        ([], []) => Err(BackendError::NoAddress),
        (addresses, []) => Ok(Replicas::One(parsed(addresses)?)),
        ([], [a, b, c]) if ![a, b, c].iter().any(|list| list.is_empty()) => {
            if config.transport == TransportKind::Pooled {
                return Err(BackendError::Replicas(
                    "transport = \"pipelined\": a pool cannot leave a slow replica behind",
                ));
            }
            if [(a, b), (a, c), (b, c)].iter().any(|(one, other)| one.iter().any(|text| other.contains(text)))
            {
                return Err(BackendError::Replicas("different servers in each list: these would vote twice"));
            }
            Ok(Replicas::Three([parsed(a)?, parsed(b)?, parsed(c)?]))
        }
        ([], _) => Err(BackendError::Replicas("three lists of addresses, none of them empty")),
        _ => Err(BackendError::Replicas("store.memcached.addresses to be empty: each replica has its own")),
    }
}

fn within<T: PartialOrd + ToString>(
    name: &'static str,
    found: T,
    least: T,
    most: T,
) -> Result<(), BackendError> {
    if (&least..=&most).contains(&&found) {
        return Ok(());
    }
    Err(BackendError::Bounds(name, found.to_string(), least.to_string(), most.to_string()))
}

/// Builds the TLS settings for the store's addresses. Reads the certificate files.
pub(crate) fn store_tls(config: &StoreTls) -> Result<Tls, BackendError> {
    let own = match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => return Err(BackendError::HalfIdentity),
    };
    Ok(Tls {
        config: tls::store_client_config(config.ca.as_deref(), own)?,
        server_name: config.server_name.clone(),
    })
}

/// Returns one store handle per worker. Its connections belong to the runtime that opens them.
pub(crate) fn stores(backend: &Backend, workers: &[Handle]) -> Vec<Store> {
    let store = |worker: &Handle| {
        let _here = worker.enter();
        backend.store()
    };
    workers.iter().map(store).collect()
}
