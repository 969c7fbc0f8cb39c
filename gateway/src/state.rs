//! What requests share: among all workers ([`Core`]), and on one worker thread ([`Worker`]).

use crate::config::{CheckTiming, Config, Limits};
use crate::keys::keyring::{Keyring, Offer};
use crate::observe::recorder::Recorder;
use crate::request::egress::Policy;
use crate::request::resolve::Resolver;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_daemon::tls::ServerConfig;
use postern_spend::{Backend, Store, Unknown};
use postern_token::{TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tokio::sync::Notify;

/// What every request needs, shared by all workers.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) offer: Offer,
    pub(crate) keyring: ArcSwap<Keyring>,
    pub(crate) backend: Backend,
    pub(crate) check_timing: CheckTiming,
    pub(crate) recorder: Recorder,
    pub(crate) shutdown: Shutdown,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections: AtomicUsize,
    /// Why no token of any key is accepted, if the store refuses all.
    pub(crate) refusing: Refusing,
    /// Keys that the store has retired although the issuer may list them: see [`Core::withdraw`].
    pub(crate) withdrawn: Mutex<Vec<TokenKeyId>>,
    /// A token of a key that is not known was presented.
    pub(crate) unknown_key: Notify,
}

impl Core {
    /// A ring without the keys that the store has retired: their records expired or were lost, so no token of them can be
    /// spent. Left in, challenges would ask for tokens that nothing accepts.
    pub(crate) fn withdraw(&self, keyring: &Keyring, now: UnixSeconds) -> Keyring {
        let mut withdrawn = self.withdrawn.lock();
        for epoch in keyring.epochs(now) {
            if self.backend.refuses(&epoch, now) == Some(Unknown::EpochRetired)
                && !withdrawn.contains(&epoch.key)
            {
                tracing::warn!(
                    token_key = %&epoch.key.to_hex()[..8],
                    "the double-spend store has retired a token key that the issuer lists: its tokens are refused, and \
                     challenges ask for tokens of another key"
                );
                withdrawn.push(epoch.key);
            }
        }
        keyring.without(&withdrawn)
    }
}

/// What the connections of one worker thread share.
pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) store: Store,
    pub(crate) resolver: Resolver,
}

impl Worker {
    /// Whether a spend of any token could be answered with a verdict now.
    pub(crate) fn serving(&self) -> Result<(), Unknown> {
        self.core.refusing.known()?;
        self.store.serving()
    }
}

/// Settings that a reload may change between two requests. Reading them takes no lock.
pub(crate) struct Settings {
    /// A connection keeps those it began with.
    pub(crate) limits: ArcSwap<Limits>,
    /// Each request is judged by the present one, also on a connection that is older.
    pub(crate) policy: ArcSwap<Policy>,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            limits: ArcSwap::from_pointee(config.limits.clone()),
            policy: ArcSwap::from_pointee(Policy::new(&config.egress)),
        }
    }
}

/// Why tokens of every key in use are refused, if they are; checked before a token is read.
#[derive(Default)]
pub(crate) struct Refusing(AtomicU8);

impl Refusing {
    /// One atomic load, cheap enough to call on each request.
    pub(crate) fn known(&self) -> Result<(), Unknown> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => Err(Unknown::RecordsLost),
            _ => Err(Unknown::EpochRetired),
        }
    }

    pub(crate) fn set(&self, reason: Option<Unknown>) {
        let state = match reason {
            None => 0,
            Some(Unknown::RecordsLost) => 1,
            Some(_) => 2,
        };
        self.0.store(state, Ordering::Relaxed);
    }
}
