//! The resolver of the settings that hold now: a reload may change them.

use super::{Resolver, ResolverError};
use crate::config::ResolverConfig;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// A worker's resolver, and the settings that it was made of.
pub(crate) struct CurrentResolver(ArcSwap<(Arc<ResolverConfig>, Arc<Resolver>)>);

impl CurrentResolver {
    pub(crate) fn new(settings: &Arc<ResolverConfig>) -> Result<Self, ResolverError> {
        let resolver = Resolver::new(settings)?;
        Ok(Self(ArcSwap::from_pointee((Arc::clone(settings), Arc::new(resolver)))))
    }

    /// The resolver of these settings. It is made where the worker's last one is of others; if that fails, the last one stays,
    /// since a gateway without a resolver would refuse every name.
    pub(crate) fn of(&self, settings: &Arc<ResolverConfig>) -> Arc<Resolver> {
        let last = self.0.load();
        if Arc::ptr_eq(&last.0, settings) {
            return Arc::clone(&last.1);
        }
        let made = Resolver::new(settings).map(Arc::new).unwrap_or_else(|error| {
            tracing::error!(%error, "the resolver of [egress.resolver] cannot be set up; the one before stays in use");
            Arc::clone(&last.1)
        });
        self.0.store(Arc::new((Arc::clone(settings), Arc::clone(&made))));
        made
    }
}
