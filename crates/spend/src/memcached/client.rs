//! The store as one runtime uses it.

use super::SharedStore;
use super::bucket::Bound;
use super::endpoint::Endpoint;
use super::epochs::EpochState;
use super::failure::Failure;
use super::options::{OnLoss, Transport};
use super::pipelined::Pipelined;
use super::pooled::Pooled;
use super::protocol::{Command, RecordKey, Reply, Value};
use super::stats::{Ended, Verb};
use super::undo::{Undo, is_undone};
use super::votes::REPLICAS;
use crate::exchange_log::Entry;
use crate::{Binding, Epoch, ExchangeLog, Hint, Spend, SpendStore, Unknown};
use postern_token::{MarkId, SpentKey, TokenKeyId, UnixSeconds};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::time::timeout;

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
        let client = &*self.0;
        if now >= epoch.expires {
            return Err(Unknown::EpochRetired);
        }
        client.store.intact()?;
        if epoch.mark.is_none() {
            client.store.is_watched()?;
            if client.store.options.replicas.are_three() {
                return Err(Unknown::Unmarked); // a replica could not tell whether it has lost the record
            }
        }
        let state = client.epoch(epoch).await?;
        let expires = state.expires().ok_or(Unknown::TimedOut)?;
        if now >= expires {
            return Err(Unknown::EpochRetired); // the store drops the epoch's records from now on
        }
        let is_bound = epoch.mark.is_some();
        client.store.permits(&state, is_bound)?;
        if state.is_known_spent(key) {
            client.store.counters.cache_hit();
            return Ok(Spend::AlreadySpent);
        }
        if epoch.mark.is_some_and(|mark| !client.store.marked.is_offered(epoch.key, mark)) {
            client.store.counters.older_mark();
        }
        let verdict = match &epoch.mark {
            Some(mark) if client.store.options.replicas.are_three() => {
                client.vote(key, mark, &state, log).await?
            }
            Some(mark) => client.add_bound(&Bound::new(key, mark), &state, log).await?,
            None => client.add(RecordKey::spent(key), expires, log).await?,
        };
        match (verdict, epoch.mark) {
            // If a loss was detected since, this record may be the token's second one.
            (Spend::Admitted, _) if !is_undone(Undo::PermitsAfterStored) => {
                client.store.intact()?;
                client.store.permits(&state, is_bound)?;
            }
            (Spend::Void, Some(mark)) => client.store.void(epoch.key, mark),
            _ => {}
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
        self.0.store.verdicts.expected()?;
        self.0.store.is_watched()
    }
}

impl ClientState {
    /// The epoch, once the store holds its expiry. Waits only the first time this process uses the epoch.
    async fn epoch(&self, epoch: &Epoch) -> Result<Arc<EpochState>, Unknown> {
        if let Some(known) = self.store.epochs.find(epoch.key)
            && let Some(expires) = known.expires()
            && (expires >= epoch.expires || !self.store.options.replicas.are_three())
        {
            return Ok(known);
        }
        self.up().then_some(()).ok_or(NOT_CONNECTED)?;
        let entered = self.store.enter(epoch);
        self.store.wake_watch.notify_one();
        entered.adopted(self.store.options.timeout + self.store.options.connect_timeout).await?;
        Ok(entered)
    }

    async fn add(
        &self,
        key: RecordKey,
        expires: UnixSeconds,
        log: &mut ExchangeLog,
    ) -> Result<Spend, Unknown> {
        let attempt = Value::unique();
        match self.send(&Command::Add { key, value: attempt, expires }, false, log).await {
            Ok(Reply::Stored) => Ok(Spend::Admitted),
            Ok(Reply::NotStored) => Ok(Spend::AlreadySpent),
            Ok(Reply::ServerError) => Err(Unknown::Rejected),
            Ok(Reply::Hit(_) | Reply::Miss) => Err(Unknown::Garbled), // no replies to an `add`
            Err(Failure::NotSent(reason)) => Err(reason),
            Err(Failure::Sent(reason)) => self.verdict_from_record(key, attempt, log).await.ok_or(reason),
        }
    }

    /// Reads the record after an `add` without a reply: its value identifies the attempt that wrote it. A missing
    /// record proves nothing, because the `add` may still arrive; for the same reason the `add` is not repeated.
    pub(super) async fn verdict_from_record(
        &self,
        key: RecordKey,
        attempt: Value,
        log: &mut ExchangeLog,
    ) -> Option<Spend> {
        let command = Command::Get(key);
        let reading = self.send(&command, true, log);
        match timeout(self.store.options.timeout, reading).await {
            Ok(Ok(Reply::Hit(value))) if value != attempt => Some(Spend::AlreadySpent),
            Ok(Ok(Reply::Hit(_))) if self.store.options.ask_whose => Some(Spend::Admitted),
            _ => None,
        }
    }

    /// Sends a command through the endpoint with the fewest outstanding commands. Tries the others only if no byte of
    /// it was sent, or if it may be `repeated`.
    async fn send(&self, command: &Command, repeated: bool, log: &mut ExchangeLog) -> Result<Reply, Failure> {
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
                Err(Failure::Sent(reason)) if !repeated => return Err(Failure::Sent(reason)),
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
        !self.endpoint.is_foreign()
            && match &self.transport {
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
        let record = match &epoch.mark {
            Some(mark) => Bound::new(key, mark).record,
            None => RecordKey::spent(key),
        };
        let command = Command::Get(record);
        match client.send(&command, true, log).await.map_err(Failure::unknown)? {
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

impl SharedStore {
    /// Whether all endpoints lead to the same records, and the watch finds nothing that would admit tokens twice.
    pub(super) fn intact(&self) -> Result<(), Unknown> {
        if self.endpoints.iter().any(|endpoint| endpoint.is_foreign()) {
            return Err(Unknown::Unproven);
        }
        self.watched.is_fit()
    }

    /// The epoch, known from now on. Where there is one replica, the watch finds in the store when its records expire.
    /// With three, a witness that would outlive a record shows it.
    pub(super) fn enter(&self, epoch: &Epoch) -> Arc<EpochState> {
        let entered = self.epochs.enter(epoch.key, epoch.expires);
        if self.options.replicas.are_three() {
            entered.prolong(epoch.expires);
        }
        entered
    }

    /// Whether spends are safe as far as losses go: where the operator chose to refuse after one, not while none could
    /// be noticed. Replicas that vote show it with each spend.
    fn is_watched(&self) -> Result<(), Unknown> {
        let refuses = self.options.on_loss != OnLoss::Warn && !self.options.replicas.are_three();
        if refuses && self.watched.is_blind() { Err(Unknown::Unwatched) } else { Ok(()) }
    }

    /// Whether a mark binds all tokens of an epoch. Where this gateway requests unmarked ones, those that others bound do not
    /// show that.
    pub(super) fn is_bound(&self, epoch: &EpochState) -> bool {
        epoch.is_bound() && self.marked.binding(epoch.key) != Some(Binding::Unmarked)
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
        self.verdicts.expected()?;
        self.is_watched()
    }

    /// Why there is no connection, by the first endpoint without one.
    pub(super) fn failure(&self) -> Unknown {
        let lost = self.endpoints.iter().find(|endpoint| endpoint.connections() == 0);
        lost.or(self.endpoints.first()).map_or(NOT_CONNECTED, |endpoint| endpoint.failure())
    }

    /// Whether tokens of an epoch may be admitted although records were lost. Tokens that a mark binds may be, unless
    /// their witnesses do not tell.
    pub(super) fn permits(&self, epoch: &EpochState, is_bound: bool) -> Result<(), Unknown> {
        let lost = if is_bound { epoch.is_parted() } else { epoch.is_lost() };
        match self.options.on_loss {
            OnLoss::Refuse if lost => Err(Unknown::RecordsLost),
            OnLoss::Retire if lost => Err(Unknown::EpochRetired),
            _ => Ok(()),
        }
    }
}
