//! What requests share: among all workers ([`Core`]), and on one worker thread ([`Worker`]).

use crate::config::{CheckTiming, Config, Limits, ResolverConfig};
use crate::keys::keyring::Keyring;
use crate::keys::offer::{KeyTypes, Offer};
use crate::memories::Memories;
use crate::next_hops::Connections;
use crate::observe::catalogue;
use crate::observe::recorder::Recorder;
use crate::request::dear::Dear;
use crate::request::deny::Refusal;
use crate::request::egress::Policy;
use crate::request::hops::Pseudonym;
use crate::request::resolve::CurrentResolver;
use arc_swap::ArcSwap;
use http::HeaderValue;
use metrics::gauge;
use parking_lot::Mutex;
use postern_admin::ProcessContext;
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::places::Places;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::rates::Rates;
use postern_daemon::sources::Source;
use postern_daemon::tls::{ListenerTls, Renewed, ServerTls};
use postern_spend::{Backend, Epoch, Store, Unknown};
use postern_token::{TokenKeyId, UnixSeconds};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{Notify, watch};

/// What every request needs, shared by all workers.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    /// What the configuration made. A reload puts another one in its place; a request keeps the one that it began with.
    pub(crate) generation: ArcSwap<Generation>,
    pub(crate) keyring: ArcSwap<Keyring>,
    pub(crate) key_types: KeyTypes,
    pub(crate) recorder: Recorder,
    pub(crate) memories: Memories,
    pub(crate) shutdown: Shutdown,
    pub(crate) places: Places,
    pub(crate) rates: Rates,
    /// The next hop that all tunnels go through is away.
    pub(crate) next_hop_away: AtomicBool,
    /// It leads in a circle.
    pub(crate) next_hop_circle: AtomicBool,
    /// Its name among gateways that are each other's next hops.
    pub(crate) pseudonym: Pseudonym,
    /// Keys that the store has retired although the issuer may list them: see [`Core::use_keys`].
    pub(crate) withdrawn: Mutex<Vec<TokenKeyId>>,
    /// A token of a key that is not known was presented.
    pub(crate) unknown_key: Notify,
}

/// What one reading of the configuration made. Two of them at once are like two gateways of a fleet: they have the same
/// store, so a token is spent once, whichever of them it is presented to.
#[derive(Clone)]
pub(crate) struct Generation {
    pub(crate) offer: Offer,
    pub(crate) backend: Arc<Backend>,
    /// The store as each worker uses it, by its number.
    pub(crate) stores: Vec<Store>,
    pub(crate) check_timing: CheckTiming,
    /// Whether clients may speak HTTP/2.
    pub(crate) http2: bool,
    /// Whether an HTTP/1.1 request needs a Host field.
    pub(crate) require_host: bool,
    /// Whose connections begin with a PROXY header.
    pub(crate) balancers: Balancers,
    pub(crate) tls: Option<ListenerTls>,
    /// For peers.
    pub(crate) peers: Option<ListenerTls>,
}

/// The certificates of the listeners, and their renewal.
pub(crate) struct Certificates {
    pub(crate) clients: Renewed,
    pub(crate) peers: Renewed,
}

impl Certificates {
    pub(crate) fn new(
        [clients, peers]: [Option<ServerTls>; 2],
        process: &ProcessContext,
        listening: &watch::Sender<bool>,
    ) -> Self {
        let ProcessContext { readiness, shutdown, .. } = process;
        let renewed = |name, tls, ends: fn(u64)| {
            Renewed::new(name, tls, readiness, shutdown, ends, listening.subscribe())
        };
        Self {
            clients: renewed("certificate", clients, |end| {
                gauge!(catalogue::CERTIFICATE_ENDS).set(end as f64)
            }),
            peers: renewed("certificate for peers", peers, |end| {
                gauge!(catalogue::PEERS_CERTIFICATE_ENDS).set(end as f64);
            }),
        }
    }

    /// Begins their renewal.
    pub(crate) fn start(&mut self) {
        self.clients.start();
        self.peers.start();
    }
}

impl Generation {
    /// The value of Proxy-Authenticate for a client without a good token.
    pub(crate) fn challenge(&self, keyring: &Keyring, now: UnixSeconds) -> Option<HeaderValue> {
        keyring.challenge(&self.offer, |key| self.backend.binding(key), now)
    }

    /// Whether the store has retired this epoch: its records expired, so no token of the key can be spent.
    fn has_retired(&self, epoch: &Epoch, now: UnixSeconds) -> bool {
        self.backend.refuses(epoch.key, now) == Some(Unknown::EpochRetired)
    }
}

impl Core {
    /// Whether a request of this source is read, or refused because too many before it were.
    pub(crate) fn may_ask(&self, source: Option<Source>, limits: &Limits) -> Result<(), Refusal> {
        self.rates.request(source, &limits.source).map_err(Refusal::SourceRefusals)
    }

    /// Counts a refusal that no good token has paid for, if the client caused it.
    pub(crate) fn refused(&self, source: Option<Source>, limits: &Limits, refusal: &Refusal) {
        if refusal.is_of_client() {
            self.rates.refused(source, &limits.source, refusal.cost());
        }
    }

    /// Withdraws the keys in use that the store has retired since.
    pub(crate) fn withdraw_retired(&self, now: UnixSeconds) {
        let (keyring, generation) = (self.keyring.load_full(), self.generation.load());
        if keyring.epochs(now).any(|epoch| generation.has_retired(&epoch, now)) {
            self.use_keys(&keyring, now);
        }
    }

    /// Puts keys into use, without those that the store has retired: challenges would ask for tokens that nothing accepts.
    pub(crate) fn use_keys(&self, keyring: &Keyring, now: UnixSeconds) {
        self.key_types.learn(keyring.iter());
        let (mut withdrawn, generation) = (self.withdrawn.lock(), self.generation.load());
        for Epoch { key, .. } in keyring.epochs(now).filter(|epoch| generation.has_retired(epoch, now)) {
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

/// What the connections of one worker thread share.
pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    /// Its number among the workers.
    pub(crate) index: usize,
    pub(crate) resolver: CurrentResolver,
    pub(crate) next_hops: Connections,
    pub(crate) dear: Dear,
}

impl Worker {
    /// The store of a generation, as this worker uses it.
    pub(crate) fn store<'a>(&self, generation: &'a Generation) -> &'a Store {
        &generation.stores[self.index]
    }

    /// Whether a spend of any token could be answered with a verdict now.
    pub(crate) fn serving(&self, generation: &Generation) -> Result<(), Unknown> {
        self.store(generation).serving()
    }
}

/// Settings that a reload may change between two requests. Reading them takes no lock.
pub(crate) struct Settings {
    descriptors: Descriptors,
    /// A connection keeps those it began with.
    pub(crate) limits: ArcSwap<Limits>,
    /// Each request is judged by the present one, also on a connection that is older.
    pub(crate) policy: ArcSwap<Policy>,
    /// Another one for each configuration that differs in it: resolvers are then made anew.
    pub(crate) resolver: ArcSwap<ResolverConfig>,
}

impl Settings {
    pub(crate) fn of(config: &Config, descriptors: Descriptors) -> Self {
        Self {
            descriptors,
            limits: ArcSwap::from_pointee(limits(config, descriptors)),
            policy: ArcSwap::from_pointee(Policy::new(&config.egress)),
            resolver: ArcSwap::from_pointee(config.egress.resolver.clone()),
        }
    }

    /// Takes up those of a configuration that was read again.
    pub(crate) fn replace(&self, config: &Config) {
        self.limits.store(Arc::new(limits(config, self.descriptors)));
        let policy = Policy::after(self.policy.load().next_hops(), &config.egress);
        self.policy.store(Arc::new(policy));
        if **self.resolver.load() != config.egress.resolver {
            self.resolver.store(Arc::new(config.egress.resolver.clone()));
        }
    }
}

/// A token is spent only by a connection for whose tunnel there is a descriptor, too.
fn limits(config: &Config, descriptors: Descriptors) -> Limits {
    let connections = descriptors.connections("[limits] connections", config.limits.connections, 2);
    Limits { connections, ..config.limits.clone() }
}
