//! The watch: a thread that maintains the marks and checks the servers behind the store's addresses. It runs independently of
//! the runtimes that spend: no spend depends on its findings, because each spend reads its own witness.

use super::client::{Away, Round, SharedStore};
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
mod witnesses;
use marking::Marking;

/// The minimum interval between two rounds, however often the watch is woken.
const BREATH: Duration = Duration::from_millis(5);
/// The pause between attempts while no store has been found; until then every request is refused.
const SEARCH: Duration = Duration::from_millis(200);
/// The number of rounds that are summed, so that the reported share of unreadable records does not flicker.
const ROUNDS: usize = 10;
/// The lifetime of the records that test whether a server takes records.
const BRIEF: Duration = Duration::from_secs(60);

/// The handle of the watch, whose thread ends when this is dropped.
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

/// A guard that reports a panic of the thread: no mark would be planted any more, so nothing is admitted.
struct Alarm(Arc<SharedStore>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.seen.ended.store(true, Relaxed);
            tracing::error!(
                "the watch of the double-spend store has ended: every request is refused. Restart the gateway"
            );
        }
    }
}

struct Rounds {
    store: Arc<SharedStore>,
    /// One connection per endpoint, kept from round to round.
    connections: Vec<Option<SerialConnection>>,
    markings: HashMap<TokenKeyId, Marking>,
    /// The endpoints that were compared last, and the time.
    compared: Option<(Vec<usize>, Instant)>,
    /// The wall-clock time at which the current round began, and one endpoint of each replica that answered in it.
    began: UnixSeconds,
    replicas: Vec<usize>,
    /// The reads of each replica in the current round, and in the last rounds.
    round: [Round; REPLICAS],
    rounds: VecDeque<[Round; REPLICAS]>,
    /// The reason of the last exchange without a reply.
    failed: Unknown,
}

impl Rounds {
    fn new(store: Arc<SharedStore>) -> Self {
        Self {
            connections: store.endpoints.iter().map(|_| None).collect(),
            store,
            markings: HashMap::new(),
            compared: None,
            began: UnixSeconds(0),
            replicas: Vec::new(),
            round: Default::default(),
            rounds: VecDeque::new(),
            failed: Unknown::Rejected,
        }
    }

    async fn run(mut self) {
        loop {
            (self.round, self.failed, self.began) = (Default::default(), Unknown::Rejected, self.now());
            let outages = self.store.seen.outages.load(Relaxed);
            let (answering, away) = self.answering().await;
            let is_found = self.replicas.len() >= self.store.options.replicas.majority();
            // Done before the slow work while a server hangs: until then every request is refused.
            if is_found && self.store.verdicts.refuses() && self.can_write().await {
                self.store.verdicts.written();
            }
            self.store.verdicts.round(if is_found { Ok(()) } else { Err(self.failed) });
            if is_found {
                self.compare_addresses(&answering).await;
            }
            if is_found && self.store.intact().is_ok() {
                self.watch_marks().await;
                *self.store.seen.away.lock() = away;
                self.store.seen.looked.store(outages, Relaxed);
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

    /// Returns the endpoints that answer and the replicas that are away, and publishes these. One that answers again may have come
    /// back empty, so it is published as away until [`Rounds::watch_marks`] has looked.
    async fn answering(&mut self) -> (Vec<usize>, [Option<Away>; REPLICAS]) {
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
        let mut away = std::array::from_fn(|replica| (replica < count).then_some(Away::Wholly));
        self.replicas.clone_from(&answering);
        self.replicas.dedup_by_key(|endpoint| self.store.endpoints[*endpoint].replica); // they are listed in this order
        for endpoint in self.replicas.clone() {
            let replica = self.replica(endpoint);
            // With one replica, missing servers show in the share of checks that it refuses.
            let lacks = count > 1 && self.last_rounds(replica).unclear > 0;
            away[replica] = match self.rejects(endpoint).await {
                true => Some(Away::Wholly),
                false => lacks.then_some(Away::InPart),
            };
        }
        for (seen, now) in self.store.seen.away.lock().iter_mut().zip(away) {
            let unseen = seen.filter(|_| count > 1).map(|_| Away::InPart);
            *seen = now.or(unseen);
        }
        (answering, away)
    }

    fn replica(&self, endpoint: usize) -> usize {
        self.store.endpoints[endpoint].replica
    }

    /// Returns `true` if the replica behind an endpoint rejected a spend and still rejects records: it can be read, and has no
    /// vote.
    async fn rejects(&mut self, endpoint: usize) -> bool {
        let replica = self.replica(endpoint);
        if !self.store.seen.rejecting[replica].load(Relaxed) {
            return false;
        }
        let rejects = !self.takes_records(endpoint).await;
        self.store.seen.rejecting[replica].store(rejects, Relaxed);
        rejects
    }

    /// Returns `true` if a majority of the replicas takes a record.
    async fn can_write(&mut self) -> bool {
        let mut written = 0;
        for endpoint in self.replicas.clone() {
            written += usize::from(self.takes_records(endpoint).await);
        }
        written >= self.store.options.replicas.majority()
    }

    /// Returns `true` if one of the servers behind an endpoint takes a record.
    async fn takes_records(&mut self, endpoint: usize) -> bool {
        let (value, expires) = (Value::of_bytes::<16>(&random_bytes()), self.began.saturating_add(BRIEF));
        let add = |_| Command::Add { key: RecordKey::new(Kind::Probe, &random_bytes()), value, expires };
        let adds: [Command; 8] = std::array::from_fn(add);
        self.request(endpoint, &adds).await.is_ok_and(|replies| replies.contains(&Reply::Stored))
    }

    fn now(&self) -> UnixSeconds {
        self.store.world.as_ref().map_or_else(UnixSeconds::now, |world| world.now())
    }

    fn pause(&self) -> Duration {
        let interval = self.store.options.interval;
        let is_searched = self.store.verdicts.expected().is_err() || !self.store.is_seen();
        if is_searched { interval.min(SEARCH) } else { interval }
    }

    /// Counts records read in this round, and those for which the store returned neither a hit nor a miss.
    fn read_in_round(&mut self, endpoint: usize, requested: usize, unclear: usize) {
        let round = &mut self.round[self.replica(endpoint)];
        round.requested += requested;
        round.unclear += unclear;
    }

    /// Returns the reads of a replica in this round and the last ones.
    fn last_rounds(&self, replica: usize) -> Round {
        let rounds = self.rounds.iter().chain([&self.round]).map(|round| round[replica]);
        rounds.fold(Round::default(), |sum, round| Round {
            requested: sum.requested + round.requested,
            unclear: sum.unclear + round.unclear,
        })
    }

    fn end_round(&mut self) {
        *self.store.seen.round.lock() = self.last_rounds(0);
        self.rounds.push_back(self.round);
        if self.rounds.len() == ROUNDS {
            self.rounds.pop_front();
        }
    }

    /// Makes one exchange through an endpoint. Records a failure there if no client is connected through it.
    async fn request(&mut self, endpoint: usize, commands: &[Command]) -> Result<Vec<Reply>, Unknown> {
        let replies = self.exchange(endpoint, commands).await;
        self.failed = *replies.as_ref().err().unwrap_or(&self.failed);
        match &replies {
            Err(reason) if self.store.endpoints_health()[endpoint].connections == 0 => {
                self.store.endpoints[endpoint].failed(*reason)
            }
            _ => {}
        }
        replies
    }

    /// Uses the kept connection if it still works. Every command here may be repeated.
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
                // A new connection would time out too. Replies missing after the timeout count as errors of their servers.
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
        // Longer than a router waits for a server that hangs, so that its error arrives, and the other replies behind it.
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
            transport: Transport::Pipelined { queue: 1 },
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
