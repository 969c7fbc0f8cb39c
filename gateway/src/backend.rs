//! Opening the double-spend store that the configuration chose.

use crate::config::{Fsync, MemcachedConfig, StoreConfig, StoreKind, StoreTls, TransportKind};
use crate::keys::keyring::CLOCK_TOLERANCE;
use postern_config::ConfigDuration;
use postern_daemon::tls::{self, TlsError};
use postern_spend::memcached::{AddressError, Memcached, Options, Pool, Replicas, Tls, Transport};
use postern_spend::{Backend, Embedded, Marks, Store, StoreError};
use postern_token::UnixSeconds;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// The most connections in one pool: memcached's own default for all of its clients is 1,024.
const MOST_POOLED: usize = 10_000;
/// Pipelined: connections to each address for each worker, and commands without an answer on one. A worker is one thread, and
/// fills no second connection.
const CONNECTIONS: usize = 1;
const QUEUE: usize = 4_096;
/// Pooled: how often idle connections are proven again, and how long one lasts.
const IDLE_PROBE: Duration = Duration::from_secs(5);
const LIFETIME: Duration = Duration::from_secs(600);
/// How often the watch looks after the marks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The embedded store.
    #[error(transparent)]
    Embedded(#[from] StoreError),
    /// No address at all.
    #[error(
        "store.memcached.addresses: kind = \"memcached\" needs at least one, such as [\"127.0.0.1:11211\"]"
    )]
    NoAddress,
    /// Replicas that make no quorum.
    #[error("store.memcached.replicas needs {0}")]
    Replicas(&'static str),
    /// An address that is none.
    #[error("store.memcached.addresses: {0}")]
    Address(#[from] AddressError),
    /// The certificate files.
    #[error("store.memcached.tls: {0}")]
    Tls(#[from] TlsError),
    /// One of two files that go together.
    #[error("store.memcached.tls: certificate and key go together; give both or neither")]
    HalfIdentity,
    /// A number that makes no store.
    #[error("store.memcached.{name} is {found}, and must be between {least} and {most}")]
    Number {
        /// The key.
        name: &'static str,
        /// Its value.
        found: usize,
        /// The smallest number that is accepted.
        least: usize,
        /// The largest.
        most: usize,
    },
    /// A duration that makes no store.
    #[error("store.memcached.{name} is {found}, and must be between {least} and {most}")]
    Duration {
        /// The key.
        name: &'static str,
        /// Its value.
        found: ConfigDuration,
        /// The shortest duration that is accepted.
        least: ConfigDuration,
        /// The longest.
        most: ConfigDuration,
    },
    /// The thread that watches the shared store.
    #[error("cannot open the shared store: {0}")]
    Start(io::Error),
}

impl BackendError {
    /// Whether the configuration must be edited, and not the machine.
    pub(crate) const fn is_configuration(&self) -> bool {
        !matches!(self, Self::Embedded(_) | Self::Start(_))
    }
}

/// Opens the store for this number of workers. Blocks while an embedded one is loaded. A shared one connects in the
/// background, and reads the TCP facts of a command that took longer than `slow`.
pub(crate) fn open(
    config: &StoreConfig,
    marks: Marks,
    workers: usize,
    slow: Duration,
) -> Result<Backend, BackendError> {
    match config.kind {
        StoreKind::Embedded => {
            let store = Embedded::open(&config.path, fsync(config), UnixSeconds::now())?;
            Ok(Backend::Embedded(Arc::new(store.bound_by(marks))))
        }
        StoreKind::Memcached => {
            let options = options(&config.memcached, marks, slow)?;
            log_settings(&options, workers);
            Ok(Backend::Memcached(Memcached::open(options).map_err(BackendError::Start)?))
        }
    }
}

/// Opens the shared store that is open already in another way, beside it.
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

/// When the records of an embedded store reach the disk.
pub(crate) fn fsync(config: &StoreConfig) -> postern_spend::Fsync {
    match config.fsync {
        Fsync::Always => postern_spend::Fsync::Always,
        Fsync::Interval(span) => postern_spend::Fsync::Interval(span.get()),
    }
}

/// Finds what [`open`] would refuse of the configuration, without opening the store.
pub(crate) fn check(config: &StoreConfig, marks: Marks) -> Result<(), BackendError> {
    match config.kind {
        StoreKind::Embedded => Ok(()),
        StoreKind::Memcached => options(&config.memcached, marks, Duration::MAX).map(drop),
    }
}

/// Logs how the store is reached.
fn log_settings(options: &Options, workers: usize) {
    let addresses = options.replicas.addresses().count();
    match &options.transport {
        Transport::Pipelined { .. } => {
            tracing::info!(addresses, workers, "the double-spend store is shared, commands are pipelined");
        }
        Transport::Pooled(Pool { size, .. }) => tracing::info!(
            addresses,
            workers,
            connections = size,
            "the double-spend store is shared, commands are pooled: `connections` for each worker and address"
        ),
    }
}

fn options(config: &MemcachedConfig, marks: Marks, slow: Duration) -> Result<Options, BackendError> {
    check_bounds(config)?;
    let transport = match config.transport {
        TransportKind::Pipelined => Transport::Pipelined { connections: CONNECTIONS, queue: QUEUE },
        TransportKind::Pooled => Transport::Pooled(Pool {
            size: config.pool_size,
            checkout_timeout: config.timeout.get(),
            idle_probe: IDLE_PROBE,
            max_lifetime: LIFETIME,
        }),
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

/// One set of records, or three.
fn replicas(config: &MemcachedConfig) -> Result<Replicas, BackendError> {
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
                return Err(BackendError::Replicas(
                    "servers of its own in each list: these would vote twice",
                ));
            }
            Ok(Replicas::Three([parsed(a)?, parsed(b)?, parsed(c)?]))
        }
        ([], _) => Err(BackendError::Replicas("three lists of addresses, none of them empty")),
        _ => Err(BackendError::Replicas("store.memcached.addresses to be empty: each replica has its own")),
    }
}

/// Rejects values outside the plausible range, which would fail later with a less helpful message.
fn check_bounds(config: &MemcachedConfig) -> Result<(), BackendError> {
    let (name, found, least, most) = ("pool_size", config.pool_size, 1, MOST_POOLED);
    if !(least..=most).contains(&found) {
        return Err(BackendError::Number { name, found, least, most });
    }
    let (name, found) = ("timeout", config.timeout);
    let (least, most) = (ConfigDuration::millis(1), ConfigDuration::minutes(1));
    if !(least..=most).contains(&found) {
        return Err(BackendError::Duration { name, found, least, most });
    }
    Ok(())
}

/// TLS to the addresses of the store. Reads the files.
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

/// The store as each of the workers uses it. Its connections belong to the runtime that opens them.
pub(crate) fn stores(backend: &Backend, workers: &[Handle]) -> Vec<Store> {
    let store = |worker: &Handle| {
        let _here = worker.enter();
        backend.store()
    };
    workers.iter().map(store).collect()
}
