//! The watch: a thread that proves the endpoints, begins epochs and reads canaries, away from the runtimes that spend.

use super::probe::{self, Probes};
use super::protocol::{Command, Reply};
use super::published::Published;
use super::serial::SerialConnection;
use super::undo::{Undo, is_undone};
use super::world::{instant, since};
use super::{Round, SharedStore};
use crate::Unknown;
use postern_token::{TokenKeyId, UnixSeconds};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

mod clock;
mod marking;
mod marks;
mod prove;
mod reconcile;
mod witnesses;
use marking::Marking;
use reconcile::Progress;

/// The shortest time between two rounds, even if the watch is woken more often.
const BREATH: Duration = Duration::from_millis(5);
/// The pause between attempts while no store has been found; until then every request is refused.
const SEARCH: Duration = Duration::from_millis(200);
/// How often the probes are read while marks bind every token: each spend then proves its own connection, and the probes
/// only show an operator that two addresses lead to different records.
const PROVE: Duration = Duration::from_secs(30);

/// The thread. It ends when this is dropped.
pub(super) struct Watch(#[expect(dead_code, reason = "dropping it is the signal")] oneshot::Sender<()>);

impl Watch {
    pub(super) fn start(store: Arc<SharedStore>, publish: Arc<Published<Arc<Probes>>>) -> io::Result<Self> {
        let (keep, ended) = oneshot::channel();
        let is_simulated = store.world.is_some();
        let watching = async move {
            let _alarm = Alarm(Arc::clone(&store));
            tokio::select! {
                biased;
                _ = ended => {}
                () = Rounds::new(store, publish).run() => {}
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

/// Reports a panic of the thread: without the watch a loss would go unnoticed, so nothing is admitted any more.
struct Alarm(Arc<SharedStore>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.watched.end();
            tracing::error!(
                "the watch of the double-spend store has ended: every request is refused. Restart the gateway"
            );
        }
    }
}

struct Rounds {
    store: Arc<SharedStore>,
    publish: Arc<Published<Arc<Probes>>>,
    /// A connection through each endpoint, kept from round to round.
    connections: Vec<Option<SerialConnection>>,
    /// The endpoint that led to the store when the probes were last read, and when that was.
    proven: Option<(usize, Instant)>,
    progress: HashMap<TokenKeyId, Progress>,
    markings: HashMap<TokenKeyId, Marking>,
    /// The epochs of which this process found no marker, and wrote the first ones.
    begun: HashSet<TokenKeyId>,
    /// What the present round could not read.
    round: Round,
    /// Commands of it without any answer in time.
    unanswered: usize,
    /// Why its last exchange had no reply.
    failed: Unknown,
    /// When the store's clock was last found ahead, until it is right again.
    ahead_since: Option<Instant>,
}

impl Rounds {
    fn new(store: Arc<SharedStore>, publish: Arc<Published<Arc<Probes>>>) -> Self {
        Self {
            connections: store.endpoints.iter().map(|_| None).collect(),
            store,
            publish,
            proven: None,
            progress: HashMap::new(),
            markings: HashMap::new(),
            begun: HashSet::new(),
            round: Round::default(),
            unanswered: 0,
            failed: Unknown::Rejected,
            ahead_since: None,
        }
    }

    async fn run(mut self) {
        loop {
            (self.round, self.unanswered, self.failed) = (Round::default(), 0, Unknown::Rejected);
            let now = self.now();
            let replicas = if self.store.options.replicas.are_three() {
                self.answering(now).await
            } else {
                self.watch_one(now).await.into_iter().collect()
            };
            let is_found = replicas.len() >= self.store.options.replicas.majority();
            if is_found {
                self.watch_marks(&replicas, now).await;
                if self.store.verdicts.refuses() && self.can_write(&replicas, now).await {
                    self.store.verdicts.written();
                }
            }
            self.store.verdicts.round(if is_found { Ok(()) } else { Err(self.failed) });
            *self.store.round.lock() = self.round;
            sleep(BREATH).await;
            tokio::select! {
                biased;
                () = self.store.wake_watch.notified() => {}
                () = sleep(self.pause()) => {}
            }
        }
    }

    /// Looks after the one set of records. Returns an endpoint that leads to it.
    async fn watch_one(&mut self, now: UnixSeconds) -> Option<usize> {
        let endpoint = match self.proven.filter(|(_, proven)| self.may_rely_on_marks(*proven, now)) {
            Some((endpoint, _)) => endpoint,
            None => {
                self.proven = None;
                let endpoint = self.prove_endpoints(now).await?;
                self.proven = Some((endpoint, instant()));
                endpoint
            }
        };
        let complete = self.reconcile_epochs(endpoint, now).await.complete;
        let compared = self.watch_clocks(endpoint).await.is_ok();
        if complete && compared && self.unanswered == 0 {
            self.store.watched.full_round();
        }
        Some(endpoint)
    }

    /// Whether this round need not read the probes: a mark binds every token, every connection found the probes, and the
    /// last round had an answer to each read. Otherwise it looks at everything, for as long as that is so.
    fn may_rely_on_marks(&self, proven: Instant, now: UnixSeconds) -> bool {
        let epochs = self.store.epochs.all();
        let are_bound = !epochs.is_empty() && epochs.iter().all(|epoch| self.store.is_bound(epoch));
        let before = *self.store.round.lock();
        let stray =
            self.store.endpoints.iter().any(|endpoint| endpoint.has_strayed() || endpoint.is_foreign());
        are_bound
            && !stray
            && before.unclear == 0
            && before.requested > 0
            && since(proven) < PROVE
            && !self.store.marked.is_suspect()
            && self.publish.get().is_some_and(|probes| !probes.are_old(now))
    }

    /// Of three replicas, those that answer, each by one of its endpoints. Connections are not compared and no canaries are
    /// written: each vote carries its own proof.
    async fn answering(&mut self, now: UnixSeconds) -> Vec<usize> {
        let count = self.store.options.replicas.count();
        let mut answering: Vec<Option<usize>> = vec![None; count];
        for endpoint in 0..self.store.endpoints.len() {
            let replica = self.store.endpoints[endpoint].replica();
            if answering[replica].is_none()
                && self
                    .request(endpoint, &probe::reads())
                    .await
                    .is_ok_and(|replies| probe::is_answer(&replies))
            {
                answering[replica] = Some(endpoint);
            }
        }
        let answering: Vec<_> = answering.into_iter().flatten().collect();
        let mut full = 0;
        for endpoint in &answering {
            full += usize::from(self.rejects(*endpoint, now).await);
        }
        self.store.away.store(count - answering.len() + full, Relaxed);
        if answering.len() >= self.store.options.replicas.majority() {
            self.store.watched.full_round();
        }
        answering
    }

    /// Whether the replica behind an endpoint rejected a spend, and rejects records still: it can be read, and has no vote.
    async fn rejects(&mut self, endpoint: usize, now: UnixSeconds) -> bool {
        let replica = self.store.endpoints[endpoint].replica();
        if !self.store.rejecting[replica].load(Relaxed) {
            return false;
        }
        let rejects = self.write(endpoint, Probes::brief(now)).await.is_none();
        self.store.rejecting[replica].store(rejects, Relaxed);
        rejects
    }

    /// Whether as many of the replicas as decide take a record.
    async fn can_write(&mut self, replicas: &[usize], now: UnixSeconds) -> bool {
        let mut written = 0;
        for endpoint in replicas {
            written += usize::from(self.write(*endpoint, Probes::brief(now)).await.is_some());
        }
        written >= self.store.options.replicas.majority()
    }

    fn now(&self) -> UnixSeconds {
        self.store.world.as_ref().map_or_else(UnixSeconds::now, |world| world.now())
    }

    fn pause(&self) -> Duration {
        let interval = self.store.options.canary_interval;
        let proves = !self.store.options.replicas.are_three();
        let unpublished = proves && self.publish.get().is_none() && self.store.intact().is_ok();
        let blind = self.store.watched.is_blind();
        let searching = unpublished || blind || self.store.verdicts.expected().is_err();
        if searching { interval.min(SEARCH) } else { interval }
    }

    /// New probes, as far as they could be written through an endpoint.
    async fn write(&mut self, endpoint: usize, probes: Probes) -> Option<Probes> {
        let replies = self.request(endpoint, &probes.adds()).await.ok()?;
        probes.stored(&replies)
    }

    /// Counts records read in this round, and those for which the store gave neither a hit nor a miss.
    fn read_in_round(&mut self, requested: usize, unclear: usize) {
        self.round.requested += requested;
        self.round.unclear += unclear;
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
                // A new connection would time out too.
                Err(Unknown::TimedOut) => return self.answered(commands, replies),
                Err(reason) if is_fresh => return Err(reason),
                Err(_) => {}
            }
        }
    }

    async fn connect(&self, endpoint: usize) -> Result<SerialConnection, Unknown> {
        let options = &self.store.options;
        // Longer than a router waits for a server that hangs, so that its error comes, and the others' replies behind it.
        let answering = if is_undone(Undo::BlindWatch) { Duration::ZERO } else { options.timeout };
        let patience = answering + options.connect_timeout;
        Ok(self.store.endpoints[endpoint].connect().await?.with_patience(patience))
    }

    /// The answers that came in time, if any did. What has none counts as an error of its server, and the round as
    /// incomplete.
    fn answered(&mut self, commands: &[Command], mut replies: Vec<Reply>) -> Result<Vec<Reply>, Unknown> {
        if replies.is_empty() {
            return Err(Unknown::TimedOut);
        }
        self.unanswered += commands.len() - replies.len();
        replies.resize(commands.len(), Reply::ServerError);
        Ok(replies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::{Memcached, OnLoss, Options, Replicas, Transport};

    #[test]
    fn a_watch_that_panics_admits_nothing_more() {
        let options = Options {
            replicas: Replicas::One(vec!["127.0.0.1:9".parse().unwrap()]),
            tls: None,
            transport: Transport::Pipelined { connections: 1, queue: 1 },
            timeout: Duration::from_secs(1),
            slow: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            canary_interval: Duration::from_secs(1),
            clock_tolerance: Duration::from_secs(1800),
            on_loss: OnLoss::Warn,
            ask_whose: false,
            marks: None,
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
