//! The store as one runtime uses it.

use super::bucket::Bound;
use super::endpoint::{Endpoint, EndpointHealth, Unfit};
use super::epochs::Epochs;
use super::marked::Marked;
use super::options::{Options, Transport};
use super::pipelined::Pipelined;
use super::pooled::Pooled;
use super::protocol::{Command, Failure, NOT_CONNECTED, Reply};
use super::stats::Totals;
use super::verdicts::Verdicts;
use super::votes::REPLICAS;
use super::world::{Undo, World, is_undone};
use crate::embedded::ShortKey;
use crate::exchange_log::{Ended, Entry, Verb};
use crate::{Epoch, ExchangeLog, Hint, Spend, SpendStore, Unknown};
use parking_lot::Mutex;
use postern_token::{Mark, MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::Notify;

/// Connections of one runtime to the shared store, made by [`Memcached::client`](super::Memcached::client).
///
/// Clones share the connections. Dropping the last clone closes them.
#[derive(Clone)]
pub struct Client(Arc<ClientState>);

pub(super) struct ClientState {
    pub(super) store: Arc<SharedStore>,
    links: Vec<Link>,
    /// For each replica, the endpoint that its next command considers first.
    turns: [AtomicUsize; REPLICAS],
}

enum Link {
    Pipelined(Pipelined),
    Pooled(Pooled),
}

impl Client {
    pub(super) fn start(store: &Arc<SharedStore>) -> Self {
        let links = store.endpoints.iter().map(|endpoint| match &store.options.transport {
            Transport::Pipelined { queue } => Link::Pipelined(Pipelined::start(endpoint, *queue)),
            Transport::Pooled { size, checkout_timeout } => {
                Link::Pooled(Pooled::start(endpoint, *size, *checkout_timeout, &store.counters))
            }
        });
        let links = links.collect();
        let client = Arc::new(ClientState { store: Arc::clone(store), links, turns: Default::default() });
        let mut clients = store.clients.lock();
        clients.retain(|known| known.strong_count() > 0);
        clients.push(Arc::downgrade(&client));
        drop(clients);
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
        if state.spent.contains(ShortKey::of(key)) {
            store.counters.cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Spend::AlreadySpent);
        }
        if store.marked.offered(epoch.key) != Some(mark) {
            store.counters.older_marks.fetch_add(1, Ordering::Relaxed);
        }
        let verdict = self.0.vote(key, &mark, &state, log).await?;
        if verdict == Spend::Void && store.marked.suspect(epoch.key, mark) {
            store.wake_watch.notify_one();
        }
        state.spent.insert(ShortKey::of(key));
        Ok(verdict)
    }
}

impl ClientState {
    /// Sends commands in one write through the endpoint, of `replica` if one is given, with the fewest outstanding commands.
    /// Tries the others only while no byte was sent, or if the commands may be repeated: a `get` may, an `add` may not.
    pub(super) async fn send<const N: usize>(
        &self,
        replica: Option<usize>,
        commands: [&Command; N],
        log: &mut ExchangeLog,
    ) -> Result<[Reply; N], Failure> {
        let (verb, mut failure, mut tried) = (Verb::of(commands[0]), Failure::NotSent(NOT_CONNECTED), 0_u64);
        while let Some((index, link)) = self.next(replica, tried) {
            tried |= 1 << index;
            let mut entry = log.begin(verb, u8::try_from(index).ok());
            let result = link.exchange(commands, &mut entry).await;
            entry.end(Ended::of(&result.map(|replies| replies[0])));
            // The third command of a spend is read together with the second: the two count as one.
            for (index, command) in commands.into_iter().enumerate().take(2) {
                self.store.counters.command(command, &result.map(|replies| replies[index]));
            }
            match result {
                Err(reason @ Failure::NotSent(_)) => failure = reason,
                Err(reason) if verb == Verb::Get => failure = reason,
                answered => return answered,
            }
        }
        if tried == 0 {
            log.begin(verb, None).end(Ended::Refused);
            self.store.counters.command(commands[0], &Err(failure));
        }
        Err(failure)
    }

    /// Returns the endpoint with the fewest outstanding commands among those that are up, not tried yet, and lead to `replica`
    /// if one is given; round robin among equals.
    fn next(&self, replica: Option<usize>, tried: u64) -> Option<(usize, &Link)> {
        let count = self.links.len();
        let turn = &self.turns[replica.unwrap_or_default()];
        let turn = if count > 1 { turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        (0..count)
            .map(|offset| (turn.wrapping_add(offset)) % count)
            .filter(|index| tried & (1 << index) == 0 && self.links[*index].is_up())
            .filter(|index| replica.is_none_or(|replica| self.store.endpoints[*index].replica == replica))
            .map(|index| (index, &self.links[index]))
            .min_by_key(|(_, link)| link.load().0)
    }

    /// Returns `true` if a majority of the replicas has an endpoint that is up.
    fn is_up(&self) -> bool {
        let replicas = &self.store.options.replicas;
        let is_up = |replica: &usize| {
            let mut links = self.store.endpoints.iter().zip(&self.links);
            links.any(|(endpoint, link)| endpoint.replica == *replica && link.is_up())
        };
        (0..replicas.count()).filter(is_up).count() >= replicas.majority()
    }
}

impl Link {
    /// Sends all commands in one write on one connection. Returns all replies, or an error if any is missing.
    async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        match self {
            Self::Pipelined(pipelined) => pipelined.exchange(commands, entry).await,
            Self::Pooled(pooled) => pooled.exchange(commands, entry).await,
        }
    }

    fn is_up(&self) -> bool {
        match self {
            Self::Pipelined(pipelined) => pipelined.is_up(),
            Self::Pooled(pooled) => pooled.is_up(),
        }
    }

    fn connections(&self) -> usize {
        match self {
            Self::Pipelined(pipelined) => pipelined.is_up().into(),
            Self::Pooled(pooled) => pooled.connections(),
        }
    }

    fn load(&self) -> (usize, usize) {
        match self {
            Self::Pipelined(pipelined) => pipelined.load(),
            Self::Pooled(pooled) => pooled.load(),
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
        let known = client.store.epochs.find(epoch.key);
        if known.as_ref().is_some_and(|known| known.spent.contains(ShortKey::of(key))) {
            client.store.counters.cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(Hint::Spent);
        }
        let command = Command::Get(Bound::record(key));
        let [reply] = client.send(None, [&command], log).await?;
        match reply {
            Reply::Hit(_) => {
                if let Some(known) = known {
                    known.spent.insert(ShortKey::of(key));
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

    fn serving(&self) -> Result<(), Unknown> {
        let Self(client) = self;
        client.store.intact()?;
        client.store.expects_verdict(client.is_up())
    }
}

/// The part of a replica's records for which it has no vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    /// Some servers behind its address do not answer.
    InPart,
    /// It does not answer, or takes no record.
    Wholly,
}

pub(super) struct SharedStore {
    pub(super) options: Arc<Options>,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    pub(super) epochs: Epochs,
    pub(super) counters: Arc<Totals>,
    pub(super) clients: Mutex<Vec<Weak<ClientState>>>,
    pub(super) verdicts: Verdicts,
    pub(super) marked: Marked,
    pub(super) seen: Seen,
    pub(super) wake_watch: Arc<Notify>,
    /// The simulated network, in a simulation.
    pub(super) world: Option<Arc<dyn World>>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// The reads by the watch of the first replica in its last rounds, and those without an answer.
    pub(super) round: Mutex<Round>,
    /// Replicas that did not answer the last round, in whole or in part, or took no record.
    pub(super) away: Mutex<[Option<Away>; REPLICAS]>,
    /// Replicas that answered a spend with an error, until the watch writes to them successfully.
    pub(super) rejecting: [AtomicBool; REPLICAS],
    /// For each replica, the reason why no mark is planted there.
    pub(super) unfit: Mutex<[Option<Unfit>; REPLICAS]>,
    /// For each replica, the last time it was found to have lost records and kept the witnesses next to them.
    pub(super) closed: Mutex<[Option<Instant>; REPLICAS]>,
    /// Two replicas lead to the same servers.
    pub(super) overlaps: AtomicBool,
    /// Every token of a key is void, and no further mark may follow.
    pub(super) used_up: AtomicBool,
    /// Two addresses of one replica lead to different records.
    pub(super) apart: AtomicBool,
    /// Times that the store was found not to serve, and the number of them at the beginning of the last round that looked at the
    /// marks.
    pub(super) outages: AtomicUsize,
    /// `true` if the store was last found not to serve.
    is_down: AtomicBool,
    pub(super) looked: AtomicUsize,
    /// The watch has panicked: nothing is admitted any more.
    pub(super) ended: AtomicBool,
}

/// Counts of records that the watch read, and of those without an answer. The records spread over the servers behind a router
/// like spent records, so their ratio is also the share of spends without a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    pub requested: usize,
    /// Those for which the store reported neither a hit nor a miss.
    pub unclear: usize,
}

impl SharedStore {
    /// Returns `Ok` if the addresses lead to the expected records and the watch runs.
    pub(super) fn intact(&self) -> Result<(), Unknown> {
        if self.seen.ended.load(Ordering::Relaxed) {
            return Err(Unknown::Unwatched);
        }
        let is_astray = self.seen.apart.load(Ordering::Relaxed) || self.seen.overlaps.load(Ordering::Relaxed);
        if is_astray { Err(Unknown::Astray) } else { Ok(()) }
    }

    /// Returns the id of a key's mark in this arrangement of replicas.
    pub(super) fn mark_id(&self, key: TokenKeyId, mark: Mark) -> MarkId {
        self.arranged(&(self.options.marks.id)(key, mark))
    }

    /// Derives the id of a mark for one replica or for three, so that gateways of both kinds in one fleet share no witness and
    /// no offer.
    fn arranged(&self, mark: &MarkId) -> MarkId {
        if is_undone(Undo::SharedNames) { *mark } else { mark.arranged(self.options.replicas.count() as u8) }
    }

    /// Returns the clients in use. The last reference to one may be among these: it must be dropped outside of the lock.
    fn clients(&self) -> Vec<Arc<ClientState>> {
        self.clients.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the health of each address. The load is read from the clients, so that a command updates no counter.
    pub(super) fn endpoints_health(&self) -> Vec<EndpointHealth> {
        let (clients, unfit) = (self.clients(), *self.seen.unfit.lock());
        let health = |(index, endpoint): (usize, &Arc<Endpoint>)| {
            let connections: usize = clients.iter().map(|client| client.links[index].connections()).sum();
            EndpointHealth {
                address: endpoint.address.clone(),
                replica: endpoint.replica,
                connections,
                outstanding: clients.iter().map(|client| client.links[index].load().0).sum(),
                capacity: clients.iter().map(|client| client.links[index].load().1).sum(),
                connect_failures: endpoint.connect_failures.load(Ordering::Relaxed),
                rejects: self.seen.rejecting[endpoint.replica].load(Ordering::Relaxed),
                unfit: unfit[endpoint.replica],
                failure: (connections == 0).then(|| endpoint.failure()),
            }
        };
        self.endpoints.iter().enumerate().map(health).collect()
    }

    /// Returns `Ok` if each client has a majority of replicas that is up, and verdicts are expected. A client without
    /// connections refuses every request, whatever the others have. A store that was found not to serve is seen by the watch,
    /// from the moment at which it can again, before it serves: its marks may be gone.
    pub(super) fn serves(&self) -> Result<(), Unknown> {
        self.intact()?;
        let clients = self.clients();
        let is_up = !clients.is_empty() && clients.iter().all(|client| client.is_up());
        let expected = self.expects_verdict(is_up);
        let was_down = self.seen.is_down.swap(expected.is_err(), Ordering::Relaxed);
        if expected.is_err() || was_down {
            self.seen.outages.fetch_add(1, Ordering::Relaxed);
            self.wake_watch.notify_one();
        }
        expected?;
        if self.is_seen() { Ok(()) } else { Err(Unknown::Unmarked) }
    }

    /// Returns `true` if the watch has looked at the marks since the store was last found not to serve.
    pub(super) fn is_seen(&self) -> bool {
        self.seen.outages.load(Ordering::Relaxed) == self.seen.looked.load(Ordering::Relaxed)
    }

    /// Returns `Ok` if a client that `is_up` can expect a verdict; otherwise the reason, of a client that is not up that of the
    /// first endpoint that was lost.
    fn expects_verdict(&self, is_up: bool) -> Result<(), Unknown> {
        if is_up {
            return self.verdicts.expected();
        }
        let lost = self.endpoints.iter().find(|endpoint| endpoint.is_lost());
        Err(lost.or(self.endpoints.first()).map_or(NOT_CONNECTED, |endpoint| endpoint.failure()))
    }
}
