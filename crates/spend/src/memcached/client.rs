//! The store as one runtime uses it.

use super::bucket::Bound;
use super::endpoint::Endpoint;
use super::epochs::Epochs;
use super::failure::Failure;
use super::marked::Marked;
use super::options::{Options, Transport};
use super::pipelined::Pipelined;
use super::pooled::Pooled;
use super::protocol::{Command, Reply};
use super::stats::Counters;
use super::undo::{Undo, is_undone};
use super::verdicts::Verdicts;
use super::votes::REPLICAS;
use super::world::World;
use crate::exchange_log::{Ended, Entry, Verb};
use crate::{Epoch, ExchangeLog, Hint, Spend, SpendStore, Unknown};
use parking_lot::Mutex;
use postern_token::{Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::Notify;

/// The error while there is no connection. Readiness reports the cause.
pub(super) const NOT_CONNECTED: Unknown = Unknown::Unavailable(std::io::ErrorKind::NotConnected);

/// Connections of one runtime to the shared store, made by [`Memcached::client`](super::Memcached::client).
///
/// Clones share the connections. They close when the last clone is dropped.
#[derive(Clone)]
pub struct Client(Arc<ClientState>);

pub(super) struct ClientState {
    pub(super) store: Arc<SharedStore>,
    endpoints: Vec<EndpointClient>,
    /// The endpoint that the next command to each replica considers first.
    turns: [AtomicUsize; REPLICAS],
}

/// The connections to one endpoint.
pub(super) struct EndpointClient {
    endpoint: Arc<Endpoint>,
    transport: TransportClient,
}

enum TransportClient {
    Pipelined(Pipelined),
    Pooled(Pooled),
}

impl Client {
    /// Starts the connections, on the present runtime.
    pub(super) fn start(store: &Arc<SharedStore>) -> Self {
        let limits = store.options.limits();
        let endpoints = store.endpoints.iter().map(|endpoint| {
            let transport = match &store.options.transport {
                Transport::Pipelined { connections, queue } => {
                    TransportClient::Pipelined(Pipelined::start(endpoint, *connections, *queue, limits))
                }
                Transport::Pooled(pool) => {
                    TransportClient::Pooled(Pooled::start(endpoint, pool, limits, &store.counters))
                }
            };
            EndpointClient { endpoint: Arc::clone(endpoint), transport }
        });
        let client = Arc::new(ClientState {
            store: Arc::clone(store),
            endpoints: endpoints.collect(),
            turns: Default::default(),
        });
        store.used_by(Arc::downgrade(&client));
        Self(client)
    }

    async fn spend_once(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let store = &self.0.store;
        if now >= epoch.expires {
            return Err(Unknown::EpochRetired);
        }
        store.intact()?;
        let mark = store.arranged(&epoch.mark.ok_or(Unknown::Unmarked)?);
        let state = store.epochs.enter(epoch.key, epoch.expires);
        if state.is_known_spent(key) {
            store.counters.cache_hit();
            return Ok(Spend::AlreadySpent);
        }
        if !store.marked.is_offered(epoch.key, mark) {
            store.counters.older_mark();
        }
        let verdict = self.0.vote(key, &mark, &state, log).await?;
        if verdict == Spend::Void {
            store.void(epoch.key, mark);
        }
        state.remember_spent(key);
        Ok(verdict)
    }
}

impl Client {
    /// Whether a verdict can be expected now, as far as this process knows. Cheap enough to call on each request.
    ///
    /// # Errors
    /// Why not.
    pub fn serving(&self) -> Result<(), Unknown> {
        self.0.store.intact()?;
        if !self.0.up() {
            return Err(self.0.store.failure());
        }
        self.0.store.verdicts.expected()
    }
}

impl ClientState {
    /// Sends a command that may be repeated through the endpoint with the fewest outstanding commands, then through the
    /// others.
    async fn send(&self, command: &Command, log: &mut ExchangeLog) -> Result<Reply, Failure> {
        let mut failure = Failure::NotSent(NOT_CONNECTED);
        let mut tried = 0_u64;
        while let Some((index, link)) = self.next(None, tried) {
            tried |= 1 << index;
            let mut entry = log.begin(Verb::of(command), u8::try_from(index).ok());
            let result = link.exchange([command], &mut entry).await.map(|[reply]| reply);
            entry.end(Ended::of(&result));
            self.store.counters.command(command, &result);
            match result {
                Ok(reply) => return Ok(reply),
                Err(reason) => failure = reason,
            }
        }
        if tried == 0 {
            log.begin(Verb::of(command), None).end(Ended::Refused);
            self.store.counters.command(command, &Err(failure));
        }
        Err(failure)
    }

    /// The endpoint with the fewest outstanding commands among those that are up and not tried yet, and lead to this
    /// replica if one is given; round robin among equals.
    pub(super) fn next(&self, replica: Option<usize>, tried: u64) -> Option<(usize, &EndpointClient)> {
        let count = self.endpoints.len();
        let turn = &self.turns[replica.unwrap_or_default()];
        let turn = if count > 1 { turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        (0..count)
            .map(|offset| (turn.wrapping_add(offset)) % count)
            .filter(|index| tried & (1 << index) == 0 && self.endpoints[*index].is_up())
            .filter(|index| {
                replica.is_none_or(|replica| self.endpoints[*index].endpoint.replica() == replica)
            })
            .map(|index| (index, &self.endpoints[index]))
            .min_by_key(|(_, link)| link.outstanding())
    }

    /// Whether as many replicas as decide have an endpoint that is up.
    pub(super) fn up(&self) -> bool {
        let replicas = &self.store.options.replicas;
        let is_up = |replica: &usize| {
            self.endpoints.iter().any(|link| link.endpoint.replica() == *replica && link.is_up())
        };
        (0..replicas.count()).filter(is_up).count() >= replicas.majority()
    }
}

impl EndpointClient {
    /// Sends all commands in one write on one connection; all have a reply, or none counts.
    pub(super) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        match &self.transport {
            TransportClient::Pipelined(pipelined) => pipelined.exchange(commands, entry).await,
            TransportClient::Pooled(pooled) => pooled.exchange(commands, entry).await,
        }
    }

    fn is_up(&self) -> bool {
        match &self.transport {
            TransportClient::Pipelined(pipelined) => pipelined.is_up(),
            TransportClient::Pooled(pooled) => pooled.is_up(),
        }
    }

    fn outstanding(&self) -> usize {
        match &self.transport {
            TransportClient::Pipelined(pipelined) => pipelined.outstanding(),
            TransportClient::Pooled(pooled) => pooled.outstanding(),
        }
    }
}

impl SpendStore for Client {
    async fn check_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        log: &mut ExchangeLog,
    ) -> Result<Hint, Unknown> {
        let client = &*self.0;
        client.store.intact()?;
        if let Some(known) = client.store.epochs.find(epoch.key)
            && known.is_known_spent(key)
        {
            client.store.counters.cache_hit();
            return Ok(Hint::Spent);
        }
        let command = Command::Get(Bound::record(key));
        match client.send(&command, log).await.map_err(Failure::unknown)? {
            Reply::Hit(_) => {
                if let Some(known) = client.store.epochs.find(epoch.key) {
                    known.remember_spent(key);
                }
                Ok(Hint::Spent)
            }
            Reply::Miss => Ok(Hint::NotFound),
            Reply::ServerError => Err(Unknown::Rejected),
            Reply::Stored | Reply::NotStored => Err(Unknown::Garbled), // no replies to a `get`
        }
    }

    async fn spend_with(
        &self,
        key: &SpentKey,
        epoch: &Epoch,
        now: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let verdict = self.spend_once(key, epoch, now, log).await;
        if self.0.store.verdicts.spent(&verdict) {
            self.0.store.wake_watch.notify_one();
        }
        verdict
    }

    async fn ready(&self) -> Result<(), Unknown> {
        self.serving()
    }
}

/// What all clients of the store share.
pub(super) struct SharedStore {
    pub(super) options: Options,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    pub(super) epochs: Epochs,
    pub(super) counters: Arc<Counters>,
    pub(super) clients: Mutex<Vec<Weak<ClientState>>>,
    pub(super) verdicts: Verdicts,
    pub(super) marked: Marked,
    /// What the watch's last rounds could not read of the first replica.
    pub(super) round: Mutex<Round>,
    /// Replicas that did not answer in the last one, in whole or in part, or took no record.
    pub(super) away: Mutex<[bool; REPLICAS]>,
    /// Replicas that answered a spend with an error, until the watch has written to them again.
    pub(super) rejecting: [AtomicBool; REPLICAS],
    /// Replicas with a memcached that evicts: no mark is planted there.
    pub(super) evicting: [AtomicBool; REPLICAS],
    /// Replicas with a router that keeps records of one bucket on several servers: no mark is planted there.
    pub(super) parting: [AtomicBool; REPLICAS],
    /// When each replica was last found to have lost records and kept the witnesses beside them.
    pub(super) closed: Mutex<[Option<Instant>; REPLICAS]>,
    /// Two replicas lead to the same servers.
    pub(super) overlaps: AtomicBool,
    /// Two addresses of one replica lead to different records.
    pub(super) apart: AtomicBool,
    /// The watch has ended by a panic: nothing is admitted any more.
    pub(super) ended: AtomicBool,
    /// Wakes the watch.
    pub(super) wake_watch: Arc<Notify>,
    /// Where a simulation runs it.
    pub(super) world: Option<Arc<dyn World>>,
}

/// The records that the watch read, and those without an answer. They are distributed over the servers
/// behind a router as spent records are, so this is also the share of spends that get no verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Records requested.
    pub requested: usize,
    /// Those for which the store reported neither a hit nor a miss.
    pub unclear: usize,
}

impl SharedStore {
    /// Whether addresses lead where they should, and the watch goes on.
    pub(super) fn intact(&self) -> Result<(), Unknown> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Unknown::Unwatched);
        }
        let is_astray = self.apart.load(Ordering::Relaxed) || self.overlaps.load(Ordering::Relaxed);
        if is_astray { Err(Unknown::Unproven) } else { Ok(()) }
    }

    /// The id of a mark of a key in this arrangement of replicas.
    pub(super) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        self.arranged(&(self.options.marks.id)(key, mark))
    }

    /// A mark is one of one replica, or of three: gateways of both kinds in one fleet share no witness and no offer.
    fn arranged(&self, mark: &MarkId) -> MarkId {
        if is_undone(Undo::SharedNames) { *mark } else { mark.arranged(self.options.replicas.count() as u8) }
    }

    /// A token of this mark was void: the watch looks why, if the mark is on offer.
    fn void(&self, key: TokenKeyId, mark: MarkId) {
        if self.marked.suspect(key, mark) {
            self.wake_watch.notify_one();
        }
    }

    /// Registers a client, for as long as it lives.
    fn used_by(&self, client: Weak<ClientState>) {
        let mut clients = self.clients.lock();
        clients.retain(|known| known.strong_count() > 0);
        clients.push(client);
    }

    /// Whether each client has an endpoint that is up. A client without one refuses every request, whatever the others
    /// have: a pool serves no request before it is warm.
    pub(super) fn serves(&self) -> Result<(), Unknown> {
        self.intact()?;
        // The last reference may be one of these: it is dropped outside of the lock.
        let clients: Vec<Arc<ClientState>> = self.clients.lock().iter().filter_map(Weak::upgrade).collect();
        let all = !clients.is_empty() && clients.iter().all(|client| client.up());
        if !all {
            return Err(self.failure());
        }
        self.verdicts.expected()
    }

    /// Why there is no connection, by the first endpoint without one.
    pub(super) fn failure(&self) -> Unknown {
        let lost = self.endpoints.iter().find(|endpoint| endpoint.connections() == 0);
        lost.or(self.endpoints.first()).map_or(NOT_CONNECTED, |endpoint| endpoint.failure())
    }
}
