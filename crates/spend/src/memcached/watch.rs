//! The watch: a thread that looks after the marks, and finds out what the store's addresses lead to. It stands beside the
//! runtimes that spend: no spend hangs on what it finds, because each reads its own witness.

use super::client::{Round, SharedStore};
use super::endpoint::{is_answer, reads};
use super::protocol::{Command, Kind, RecordKey, Reply, Value};
use super::serial::SerialConnection;
use super::votes::REPLICAS;
use super::world::random_bytes;
use crate::Unknown;
use postern_token::{TokenKeyId, UnixSeconds};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

mod addresses;
mod marking;
mod marks;
mod sentinels;
mod witnesses;
use marking::Marking;

/// The shortest time between two rounds, even if the watch is woken more often.
const BREATH: Duration = Duration::from_millis(5);
/// The pause between attempts while no store has been found; until then every request is refused.
const SEARCH: Duration = Duration::from_millis(200);
/// How many rounds are added up, so that what cannot be read is a share that does not flicker.
const ROUNDS: usize = 10;
/// How long a record lasts that shows that a server takes records.
const BRIEF: Duration = Duration::from_secs(60);

/// The thread. It ends when this is dropped.
pub(super) struct Watch(#[expect(dead_code, reason = "dropping it is the signal")] oneshot::Sender<()>);

impl Watch {
    pub(super) fn start(store: Arc<SharedStore>) -> io::Result<Self> {
        let (keep, ended) = oneshot::channel();
        let is_simulated = store.world.is_some();
        let watching = async move {
            let _alarm = Alarm(Arc::clone(&store));
            tokio::select! {
                biased;
                _ = ended => {}
                () = Rounds::new(store).run() => {}
            }
        };
        if is_simulated {
            tokio::spawn(watching);
        } else {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new()
                .name("store-watch".to_owned())
                .spawn(move || runtime.block_on(watching))?;
        }
        Ok(Self(keep))
    }
}

/// Reports a panic of the thread: no mark would be planted any more, so nothing is admitted.
struct Alarm(Arc<SharedStore>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.ended.store(true, Relaxed);
            tracing::error!(
                "the watch of the double-spend store has ended: every request is refused. Restart the gateway"
            );
        }
    }
}

struct Rounds {
    store: Arc<SharedStore>,
    /// A connection through each endpoint, kept from round to round.
    connections: Vec<Option<SerialConnection>>,
    markings: HashMap<TokenKeyId, Marking>,
    compared: Option<Compared>,
    /// What the present round could not read of each replica, and the last ones.
    round: [Round; REPLICAS],
    rounds: VecDeque<[Round; REPLICAS]>,
    /// Why its last exchange had no reply.
    failed: Unknown,
}

/// The last comparison of addresses: which endpoints, and when.
struct Compared {
    endpoints: Vec<usize>,
    at: Instant,
}

impl Rounds {
    fn new(store: Arc<SharedStore>) -> Self {
        Self {
            connections: store.endpoints.iter().map(|_| None).collect(),
            store,
            markings: HashMap::new(),
            compared: None,
            round: Default::default(),
            rounds: VecDeque::new(),
            failed: Unknown::Rejected,
        }
    }

    async fn run(mut self) {
        loop {
            (self.round, self.failed) = (Default::default(), Unknown::Rejected);
            let now = self.now();
            let answering = self.answering(now).await;
            let replicas = self.one_of_each(&answering);
            let is_found = replicas.len() >= self.store.options.replicas.majority();
            if is_found {
                // Before what takes long while a server hangs: until then every request is refused.
                if self.store.verdicts.refuses() && self.can_write(&replicas, now).await {
                    self.store.verdicts.written();
                }
            }
            self.store.verdicts.round(if is_found { Ok(()) } else { Err(self.failed) });
            if is_found {
                self.compare_addresses(&answering, now).await;
            }
            if is_found && self.store.intact().is_ok() {
                self.watch_marks(&replicas, now).await;
            }
            self.end_round();
            sleep(BREATH).await;
            tokio::select! {
                biased;
                () = self.store.wake_watch.notified() => {}
                () = sleep(self.pause()) => {}
            }
        }
    }

    /// The endpoints that answer.
    async fn answering(&mut self, now: UnixSeconds) -> Vec<usize> {
        let mut answering = Vec::new();
        for endpoint in 0..self.store.endpoints.len() {
            let Ok(replies) = self.request(endpoint, &reads()).await else { continue };
            if is_answer(&replies) {
                let unclear = replies.iter().filter(|reply| **reply == Reply::ServerError).count();
                self.read_in_round(endpoint, replies.len(), unclear);
                answering.push(endpoint);
            }
        }
        let count = self.store.options.replicas.count();
        let mut away = std::array::from_fn(|replica| replica < count);
        for endpoint in self.one_of_each(&answering) {
            let replica = self.store.endpoints[endpoint].replica();
            // One replica that lacks servers is said by the share of checks that it refuses.
            let lacks = count > 1 && self.last_rounds(replica).unclear > 0;
            away[replica] = self.rejects(endpoint, now).await || lacks;
        }
        *self.store.away.lock() = away;
        answering
    }

    /// Of these endpoints, the first of each replica.
    fn one_of_each(&self, endpoints: &[usize]) -> Vec<usize> {
        let replica = |endpoint: &usize| self.store.endpoints[*endpoint].replica();
        let mut chosen: Vec<usize> = Vec::new();
        for endpoint in endpoints {
            if !chosen.iter().any(|other| replica(other) == replica(endpoint)) {
                chosen.push(*endpoint);
            }
        }
        chosen
    }

    /// Whether the replica behind an endpoint rejected a spend, and rejects records still: it can be read, and has no vote.
    async fn rejects(&mut self, endpoint: usize, now: UnixSeconds) -> bool {
        let replica = self.store.endpoints[endpoint].replica();
        if !self.store.rejecting[replica].load(Relaxed) {
            return false;
        }
        let rejects = !self.takes_records(endpoint, now).await;
        self.store.rejecting[replica].store(rejects, Relaxed);
        rejects
    }

    /// Whether as many of the replicas as decide take a record.
    async fn can_write(&mut self, replicas: &[usize], now: UnixSeconds) -> bool {
        let mut written = 0;
        for endpoint in replicas {
            written += usize::from(self.takes_records(*endpoint, now).await);
        }
        written >= self.store.options.replicas.majority()
    }

    /// Whether one of the servers behind an endpoint takes a record.
    async fn takes_records(&mut self, endpoint: usize, now: UnixSeconds) -> bool {
        let (value, expires) = (Value::of_bytes(&random_bytes()), now.saturating_add(BRIEF));
        let add = |_| Command::Add { key: RecordKey::new(Kind::Probe, &random_bytes()), value, expires };
        let adds: [Command; 8] = std::array::from_fn(add);
        self.request(endpoint, &adds).await.is_ok_and(|replies| replies.contains(&Reply::Stored))
    }

    fn now(&self) -> UnixSeconds {
        self.store.world.as_ref().map_or_else(UnixSeconds::now, |world| world.now())
    }

    fn pause(&self) -> Duration {
        let interval = self.store.options.interval;
        if self.store.verdicts.expected().is_err() { interval.min(SEARCH) } else { interval }
    }

    /// Counts records read in this round, and those for which the store gave neither a hit nor a miss.
    fn read_in_round(&mut self, endpoint: usize, requested: usize, unclear: usize) {
        let round = &mut self.round[self.store.endpoints[endpoint].replica()];
        round.requested += requested;
        round.unclear += unclear;
    }

    /// What was read of a replica in this round and the last ones.
    fn last_rounds(&self, replica: usize) -> Round {
        let rounds = self.rounds.iter().chain([&self.round]).map(|round| round[replica]);
        rounds.fold(Round::default(), |sum, round| Round {
            requested: sum.requested + round.requested,
            unclear: sum.unclear + round.unclear,
        })
    }

    fn end_round(&mut self) {
        *self.store.round.lock() = self.last_rounds(0);
        self.rounds.push_back(self.round);
        if self.rounds.len() == ROUNDS {
            self.rounds.pop_front();
        }
    }

    /// One exchange through an endpoint. Records the failure if no client is connected through it.
    async fn request(&mut self, endpoint: usize, commands: &[Command]) -> Result<Vec<Reply>, Unknown> {
        let replies = self.exchange(endpoint, commands).await;
        self.failed = *replies.as_ref().err().unwrap_or(&self.failed);
        match &replies {
            Err(reason) if self.store.endpoints[endpoint].connections() == 0 => {
                self.store.endpoints[endpoint].failed(*reason)
            }
            _ => {}
        }
        replies
    }

    /// Over a kept connection if it still works. Every command here may be repeated.
    async fn exchange(&mut self, endpoint: usize, commands: &[Command]) -> Result<Vec<Reply>, Unknown> {
        let mut kept = self.connections[endpoint].take();
        loop {
            let is_fresh = kept.is_none();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.connect(endpoint).await?,
            };
            let mut replies = Vec::with_capacity(commands.len());
            match connection.exchange_into(commands, &mut replies).await {
                Ok(()) => {
                    self.connections[endpoint] = Some(connection);
                    return Ok(replies);
                }
                // A new connection would time out too. What has no answer in time counts as an error of its server.
                Err(Unknown::TimedOut) if !replies.is_empty() => {
                    replies.resize(commands.len(), Reply::ServerError);
                    return Ok(replies);
                }
                Err(Unknown::TimedOut) => return Err(Unknown::TimedOut),
                Err(reason) if is_fresh => return Err(reason),
                Err(_) => {}
            }
        }
    }

    async fn connect(&self, endpoint: usize) -> Result<SerialConnection, Unknown> {
        let options = &self.store.options;
        // Longer than a router waits for a server that hangs, so that its error comes, and the others' replies behind it.
        let patience = options.timeout + options.connect_timeout;
        Ok(self.store.endpoints[endpoint].connect().await?.with_patience(patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Marks;
    use crate::memcached::{Memcached, Options, Replicas, Transport};
    use postern_token::{ChallengeDigest, MarkId};

    #[test]
    fn a_watch_that_panics_admits_nothing_more() {
        let id = |key, _| MarkId::derive("a", key, ChallengeDigest([0; 32]));
        let options = Options {
            replicas: Replicas::One(vec!["127.0.0.1:9".parse().unwrap()]),
            tls: None,
            transport: Transport::Pipelined { connections: 1, queue: 1 },
            timeout: Duration::from_secs(1),
            slow: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            interval: Duration::from_secs(1),
            clock_tolerance: Duration::from_secs(1800),
            marks: Marks { id: Arc::new(id) },
            cache_bytes: 0,
        };
        let store = Memcached::open(options).unwrap();
        assert_eq!(store.store.intact(), Ok(()));
        let alarm = Alarm(Arc::clone(&store.store));
        let ended = thread::spawn(move || {
            let _alarm = alarm;
            panic!("as a fault in the watch would");
        });
        assert!(ended.join().is_err());
        assert_eq!(store.store.intact(), Err(Unknown::Unwatched));
    }
}
