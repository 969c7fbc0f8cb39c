//! The resolver of what holds now: a reload may change the settings, and the system its files.

use super::system::Stamps;
use super::{Resolver, ResolverError};
use crate::config::{ResolverConfig, ResolverKind};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_daemon::seldom::Seldom;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the system's files are looked at: a laptop that moves, or a container whose network changes, has others.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A worker's resolver.
pub(crate) struct CurrentResolver {
    made: ArcSwap<Made>,
    looked: Mutex<Instant>,
}

/// A resolver, and what it was made of.
struct Made {
    settings: Arc<ResolverConfig>,
    files: Stamps,
    resolver: Arc<Resolver>,
}

impl CurrentResolver {
    pub(crate) fn new(settings: &Arc<ResolverConfig>) -> Result<Self, ResolverError> {
        let files = stamps(settings); // before they are read: what changes meanwhile is read again
        let resolver = Arc::new(Resolver::new(settings)?);
        let made = Made { settings: Arc::clone(settings), files, resolver };
        Ok(Self { made: ArcSwap::from_pointee(made), looked: Mutex::new(Instant::now()) })
    }

    /// The resolver of these settings and of the system's files. It is made where the worker's last one is of others; if that fails, the
    /// last one stays, since a gateway without a resolver would refuse every name.
    pub(crate) fn of(&self, settings: &Arc<ResolverConfig>) -> Arc<Resolver> {
        let last = self.made.load();
        let is_same = Arc::ptr_eq(&last.settings, settings);
        if is_same && !self.is_look_due(Instant::now()) {
            return Arc::clone(&last.resolver);
        }
        let files = stamps(settings);
        if is_same && files == last.files {
            return Arc::clone(&last.resolver);
        }
        let resolver = Resolver::new(settings).map(Arc::new).unwrap_or_else(|error| {
            tracing::error!(%error, "the resolver of [egress.resolver] cannot be set up; the one before stays in use");
            Arc::clone(&last.resolver)
        });
        if is_same {
            report();
        }
        let made = Made { settings: Arc::clone(settings), files, resolver: Arc::clone(&resolver) };
        self.made.store(Arc::new(made));
        resolver
    }

    fn is_look_due(&self, now: Instant) -> bool {
        let looked = &mut *self.looked.lock();
        let is_due = now.saturating_duration_since(*looked) >= LOOK_EVERY;
        if is_due {
            *looked = now;
        }
        is_due
    }
}

/// Those of the files that are read; name servers of the operator's choice are read of none.
fn stamps(settings: &ResolverConfig) -> Stamps {
    if settings.kind == ResolverKind::System { Stamps::look() } else { Stamps::default() }
}

/// Once for all workers.
fn report() {
    static REPORTED: Seldom = Seldom::every(Duration::from_secs(10));
    if REPORTED.due(Instant::now()).is_some() {
        tracing::info!("the system's name servers and hosts have changed, and are read again");
    }
}
