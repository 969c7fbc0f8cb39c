//! Opening the double-spend store that the configuration chose.

use crate::config::{
    CheckTiming, Fsync, LossPolicy, MemcachedConfig, StoreConfig, StoreKind, StoreTls, TransportKind,
};
use crate::keys::keyring::CLOCK_TOLERANCE;
use postern_config::ConfigDuration;
use postern_daemon::tls::{self, TlsError};
use postern_spend::memcached::{
    AddressError, Memcached, OnLoss, Options, Pool, Replicas, Tls, Transport, pool_size,
};
use postern_spend::{Backend, Embedded, Marks, StoreError};
use postern_token::UnixSeconds;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The most connections in one pool: memcached's own default for all of its clients is 1,024.
const MOST_POOLED: usize = 10_000;

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
    /// A pool that no server takes.
    #[error(
        "store.memcached: {found} connections for each worker and address follow from checks_per_second and latency, \
         and at most {most} are made: check the two, or set pool_size"
    )]
    PoolSize {
        /// What follows.
        found: usize,
        /// The most.
        most: usize,
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
    marks: Option<Marks>,
    workers: usize,
    slow: Duration,
) -> Result<Backend, BackendError> {
    match config.kind {
        StoreKind::Embedded => {
            let store = Embedded::open(&config.path, fsync(config), UnixSeconds::now())?;
            Ok(Backend::Embedded(Arc::new(store.bound_by(marks))))
        }
        StoreKind::Memcached => {
            let options = Options { marks, ..options(&config.memcached, workers, slow)? };
            log_settings(&config.memcached, &options, workers);
            Ok(Backend::Memcached(Memcached::open(options).map_err(BackendError::Start)?))
        }
    }
}

/// Opens the shared store that is open already in another way, beside it.
pub(crate) fn reopen(
    open: &Memcached,
    config: &MemcachedConfig,
    marks: Option<Marks>,
    workers: usize,
    slow: Duration,
) -> Result<Memcached, BackendError> {
    let options = Options { marks, ..options(config, workers, slow)? };
    log_settings(config, &options, workers);
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
pub(crate) fn check(config: &StoreConfig, workers: usize) -> Result<(), BackendError> {
    match config.kind {
        StoreKind::Embedded => Ok(()),
        StoreKind::Memcached => options(&config.memcached, workers, Duration::MAX).map(drop),
    }
}

/// Logs the settings derived from the configuration.
fn log_settings(config: &MemcachedConfig, options: &Options, workers: usize) {
    let addresses = options.replicas.addresses().count();
    match &options.transport {
        Transport::Pipelined { connections, .. } => tracing::info!(
            addresses,
            workers,
            connections,
            "the double-spend store is shared, commands are pipelined"
        ),
        Transport::Pooled(pool) => tracing::info!(
            addresses, workers, connections = pool.size, derived = config.pool_size == 0,
            checks_per_second = config.checks_per_second, latency = ?config.latency.get(),
            "the double-spend store is shared, commands are pooled: `connections` for each worker and address"
        ),
    }
}

fn options(config: &MemcachedConfig, workers: usize, slow: Duration) -> Result<Options, BackendError> {
    check_bounds(config)?;
    let replicas = replicas(config)?;
    let addresses = replicas.addresses().count();
    let transport = match config.transport {
        TransportKind::Pipelined => {
            Transport::Pipelined { connections: config.connections, queue: config.queue }
        }
        TransportKind::Pooled => Transport::Pooled(pool(config, addresses, workers)?),
    };
    Ok(Options {
        tls: config.tls.as_ref().map(store_tls).transpose()?,
        replicas,
        transport,
        timeout: config.timeout.get(),
        slow,
        connect_timeout: config.connect_timeout.get(),
        canary_interval: config.canary_interval.get(),
        clock_tolerance: CLOCK_TOLERANCE,
        on_loss: match config.on_loss {
            LossPolicy::Warn => OnLoss::Warn,
            LossPolicy::Refuse => OnLoss::Refuse,
            LossPolicy::Rotate => OnLoss::Retire,
        },
        ask_whose: config.ask_whose,
        marks: None,
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
    for (name, found, least, most) in [
        ("connections", config.connections, 1, 256),
        ("queue", config.queue, 1, 1_000_000),
        ("pool_size", config.pool_size, 0, MOST_POOLED),
    ] {
        if !(least..=most).contains(&found) {
            return Err(BackendError::Number { name, found, least, most });
        }
    }
    for (name, found, least, most) in [
        ("timeout", config.timeout, ConfigDuration::millis(1), ConfigDuration::minutes(1)),
        ("connect_timeout", config.connect_timeout, ConfigDuration::millis(1), ConfigDuration::minutes(1)),
        ("checkout_timeout", config.checkout_timeout, ConfigDuration::millis(1), ConfigDuration::minutes(1)),
        ("canary_interval", config.canary_interval, ConfigDuration::millis(10), ConfigDuration::hours(1)),
        ("idle_probe", config.idle_probe, ConfigDuration::millis(10), ConfigDuration::hours(24)),
        ("max_lifetime", config.max_lifetime, ConfigDuration::secs(1), ConfigDuration::days(30)),
        ("latency", config.latency, ConfigDuration::millis(0), ConfigDuration::minutes(1)),
    ] {
        if !(least..=most).contains(&found) {
            return Err(BackendError::Duration { name, found, least, most });
        }
    }
    Ok(())
}

/// The pool of one worker to one address, by Little's law where its size is not given.
fn pool(config: &MemcachedConfig, addresses: usize, workers: usize) -> Result<Pool, BackendError> {
    let commands_a_check = if config.hint == CheckTiming::Off { 1 } else { 2 };
    let share =
        f64::from(config.checks_per_second) * f64::from(commands_a_check) / (workers * addresses) as f64;
    let size = match config.pool_size {
        0 => pool_size(share, config.latency.get()),
        size => size,
    };
    if size > MOST_POOLED {
        return Err(BackendError::PoolSize { found: size, most: MOST_POOLED });
    }
    Ok(Pool {
        size,
        checkout_timeout: config.checkout_timeout.get(),
        check_on_checkout: config.check_on_checkout,
        idle_probe: config.idle_probe.get(),
        max_lifetime: config.max_lifetime.get(),
    })
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
