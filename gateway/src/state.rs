//! State shared by requests: among all workers ([`Core`]), and on one worker thread ([`Worker`]).

use crate::config::Limits;
use crate::keys::keyring::Keyring;
use crate::keys::offer::KeyTypes;
use crate::memories::Memories;
use crate::next_hops::Connections;
use crate::observe::recorder::Recorder;
use crate::request::dear::Dear;
use crate::request::deny::Refusal;
use crate::request::hops::Pseudonym;
use crate::request::resolve::CurrentResolver;
use crate::settings::Settings;
use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;
use postern_daemon::drain::Shutdown;
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::sources::Source;
use postern_daemon::tls::{ListenerTls, ServerTls};
use postern_spend::{Backend, Epoch, Store};
use postern_token::{TokenKeyId, UnixSeconds};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// State shared by the requests of all workers.
pub(crate) struct Core {
    /// Current generation. A reload replaces it; a request keeps the one with which it began.
    pub(crate) generation: ArcSwap<Generation>,
    pub(crate) keyring: ArcSwap<Keyring>,
    pub(crate) key_types: KeyTypes,
    pub(crate) recorder: Recorder,
    pub(crate) memories: Memories,
    pub(crate) shutdown: Shutdown,
    pub(crate) places: Places,
    pub(crate) rates: Rates,
    /// Name of this gateway among gateways that are each other's next hops.
    pub(crate) pseudonym: Pseudonym,
    /// Keys that the store has retired although the issuer may list them. See [`Core::use_keys`].
    pub(crate) withdrawn: Mutex<Vec<TokenKeyId>>,
    /// Notified when a token names an unknown key.
    pub(crate) unknown_key: Notify,
}

/// Objects built from one reading of the configuration. Two generations at once act like two gateways of a fleet: they have the
/// same store, so a token is spent once, whichever generation receives it.
#[derive(Clone)]
pub(crate) struct Generation {
    pub(crate) settings: Settings,
    pub(crate) backend: Arc<Backend>,
    /// Store handles of the workers, by worker index.
    pub(crate) stores: Vec<Store>,
    pub(crate) tls: Option<ListenerTls>,
    /// TLS of the peer listener.
    pub(crate) peers: Option<ListenerTls>,
}

impl Generation {
    /// Creates a generation with the TLS of both listeners.
    pub(crate) fn new(
        settings: Settings,
        (backend, stores): (Arc<Backend>, Vec<Store>),
        tls: [Option<&ServerTls>; 2],
    ) -> Self {
        let [tls, peers] = tls.map(|tls| tls.map(|tls| ListenerTls::new(tls, settings.http2)));
        Self { settings, backend, stores, tls, peers }
    }

    /// Returns the value of Proxy-Authenticate for a client without a good token.
    pub(crate) fn challenge(&self, keyring: &Keyring, now: UnixSeconds) -> Option<HeaderValue> {
        keyring.challenge(&self.settings.offer, |key| self.backend.binding(key), now)
    }
}

impl Core {
    /// Refuses a request, before it is read, if too many requests of its source were refused before.
    pub(crate) fn may_ask(&self, source: Option<Source>, limits: &Limits) -> Result<(), Refusal> {
        self.rates.request(source, &limits.source).map_err(Refusal::SourceRefusals)
    }

    /// Counts a refusal that the client caused and no good token has paid for.
    pub(crate) fn refused(&self, source: Option<Source>, limits: &Limits, refusal: &Refusal) {
        if refusal.is_of_client() {
            self.rates.refused(source, &limits.source, refusal.cost());
        }
    }

    /// Records the answer to a request that reached no stage.
    pub(crate) fn turned_away(&self, refusal: &Refusal) {
        self.recorder.turned_away(refusal, self.generation.load().settings.access);
    }

    /// Withdraws keys in use that the store has retired.
    pub(crate) fn withdraw_retired(&self, now: UnixSeconds) {
        let (keyring, generation) = (self.keyring.load_full(), self.generation.load());
        if keyring.epochs(now).any(|epoch| generation.backend.has_retired(epoch.key, now)) {
            self.use_keys(&keyring, now);
        }
    }

    /// Puts keys into use, except those that the store has retired: challenges would request tokens that nothing accepts.
    pub(crate) fn use_keys(&self, keyring: &Keyring, now: UnixSeconds) {
        self.key_types.learn(keyring.iter());
        let (mut withdrawn, generation) = (self.withdrawn.lock(), self.generation.load());
        for Epoch { key, .. } in
            keyring.epochs(now).filter(|epoch| generation.backend.has_retired(epoch.key, now))
        {
            if !withdrawn.contains(&key) {
                tracing::warn!(
                    token_key = %key.short(),
                    "the double-spend store has retired a token key that the issuer lists: its tokens are refused, and \
                     challenges ask for tokens of another key"
                );
                withdrawn.push(key);
            }
        }
        self.keyring.store(Arc::new(keyring.without(&withdrawn)));
    }
}

pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) index: usize,
    pub(crate) resolver: CurrentResolver,
    pub(crate) next_hops: Connections,
    pub(crate) dear: Dear,
}

impl Worker {
    pub(crate) fn store<'a>(&self, generation: &'a Generation) -> &'a Store {
        &generation.stores[self.index]
    }
}

/// Returns one store handle per worker. Its connections belong to the runtime that opens them.
pub(crate) fn stores(backend: &Backend, workers: &[Handle]) -> Vec<Store> {
    let store = |worker: &Handle| {
        let _here = worker.enter();
        backend.store()
    };
    workers.iter().map(store).collect()
}
