//! The watch: a thread that proves the endpoints, begins epochs and reads canaries, away from the runtimes that spend.

use super::probe::{Probes, Proof};
use super::protocol::{Command, Reply};
use super::published::Published;
use super::serial::SerialConnection;
use super::undo::{Undo, is_undone};
use super::{Round, SharedStore};
use crate::Unknown;
use postern_token::{TokenKeyId, UnixSeconds};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::sleep;

mod clock;
mod marks;
mod reconcile;
use marks::Marking;
use reconcile::Progress;

/// The shortest time between two rounds, even if the watch is woken more often.
const BREATH: Duration = Duration::from_millis(5);
/// The pause between attempts while no store has been found; until then every request is refused.
const SEARCH: Duration = Duration::from_millis(200);

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
            let endpoint = self.prove_endpoints(now).await;
            if let Some(endpoint) = endpoint {
                let complete = self.reconcile_epochs(endpoint, now).await.complete;
                let compared = self.watch_clocks(endpoint).await.is_ok();
                if complete && compared && self.unanswered == 0 {
                    self.store.watched.full_round();
                }
                self.watch_marks(endpoint, now).await;
                if self.store.verdicts.refuses() && self.write(endpoint, Probes::brief(now)).await.is_some() {
                    self.store.verdicts.written();
                }
            }
            self.store.verdicts.round(endpoint.map(|_| ()).ok_or(self.failed));
            *self.store.round.lock() = self.round;
            sleep(BREATH).await;
            tokio::select! {
                biased;
                () = self.store.wake_watch.notified() => {}
                () = sleep(self.pause()) => {}
            }
        }
    }

    fn now(&self) -> UnixSeconds {
        self.store.world.as_ref().map_or_else(UnixSeconds::now, |world| world.now())
    }

    fn pause(&self) -> Duration {
        let interval = self.store.options.canary_interval;
        let unpublished = self.publish.get().is_none() && self.store.intact().is_ok();
        let blind = self.store.watched.is_blind();
        let searching = unpublished || blind || self.store.verdicts.expected().is_err();
        if searching { interval.min(SEARCH) } else { interval }
    }

    /// Reads the probes through every endpoint. Returns an endpoint that leads to the store, if there is one.
    async fn prove_endpoints(&mut self, now: UnixSeconds) -> Option<usize> {
        let published = self.publish.get();
        let Some(probes) = published.filter(|probes| !probes.are_old(now)) else {
            return self.renew(now).await;
        };
        let (mut proofs, mut missing) = (Vec::new(), false);
        for endpoint in 0..self.connections.len() {
            let replies = self.read(endpoint, &probes).await;
            missing |= replies.as_ref().is_some_and(|replies| probes.are_missing(replies));
            proofs.push(replies.map_or(Proof::Unclear, |replies| probes.judge(&replies)));
        }
        let whole = proofs.iter().position(|proof| *proof == Proof::Same);
        let Some(same) = whole.or_else(|| proofs.iter().position(|proof| proof.is_some())) else {
            // A server authoritatively reported a miss, so the probes were lost, and other records may be lost too.
            return if proofs.contains(&Proof::Other) { self.renew(now).await } else { None };
        };
        self.judge(same, &proofs, now).await;
        // Some are gone everywhere: a server came back empty, and no new connection would find all of them.
        if whole.is_none() && missing && self.store.intact().is_ok() {
            return self.renew(now).await.or(Some(same));
        }
        Some(same)
    }

    /// Writes new probes through the first endpoint that takes them, and publishes them when no other endpoint
    /// contradicts.
    async fn renew(&mut self, now: UnixSeconds) -> Option<usize> {
        for writer in 0..self.connections.len() {
            let Some(probes) = self.write(writer, Probes::new(now)).await else { continue };
            let mut proofs = Vec::new();
            for endpoint in 0..self.connections.len() {
                proofs.push(self.prove(endpoint, &probes).await);
            }
            if !proofs[writer].is_some() {
                continue;
            }
            self.judge(writer, &proofs, now).await;
            if self.store.endpoints.iter().any(|endpoint| endpoint.is_foreign()) {
                return None;
            }
            // Look for losses before publishing the new probes: once published they prove connections, which could then
            // admit tokens of an epoch whose loss is not detected yet.
            if !self.reconcile_epochs(writer, now).await.usable
                || self.compare_clocks(writer, clock::AT_START).await.is_err()
            {
                return None;
            }
            self.publish.publish(Arc::new(probes));
            self.store.endpoints.iter().for_each(|endpoint| endpoint.forgive());
            return Some(writer);
        }
        None
    }

    /// Marks endpoints that lead to other records than `same`. A second read has to confirm it, because probes may have
    /// been lost between the write and the first read.
    async fn judge(&mut self, same: usize, proofs: &[Proof], now: UnixSeconds) {
        for (index, proof) in proofs.iter().enumerate() {
            let foreign = match proof {
                Proof::Same => false,
                Proof::Partly if index == same => false,
                // Once foreign, until all probes are read: new ones might all lie in the part that is shared.
                Proof::Partly => {
                    self.store.endpoints[index].is_foreign() || self.lacks(index, same, now).await == Ok(true)
                }
                Proof::Unclear => continue,
                Proof::Other => match self.write(same, Probes::brief(now)).await {
                    Some(again) => {
                        self.prove(index, &again).await == Proof::Other
                            && self.prove(same, &again).await.is_some()
                    }
                    None => continue,
                },
            };
            let endpoint = &self.store.endpoints[index];
            if foreign && !endpoint.is_foreign() {
                tracing::error!(
                    address = %endpoint.address(), other = %self.store.endpoints[same].address(),
                    "two addresses of the double-spend store lead to different records, so each would admit a token once: \
                     every token is refused until they lead to the same records, or one of them is removed"
                );
            }
            endpoint.set_foreign(foreign);
        }
    }

    /// Whether an endpoint leads elsewhere for a part of the keys: it stores probes that `same` already holds. A miss
    /// alone proves nothing, because a router may report one for a server that is down.
    async fn lacks(&mut self, endpoint: usize, same: usize, now: UnixSeconds) -> Result<bool, Unknown> {
        let Some(probes) = self.write(same, Probes::brief(now)).await else { return Ok(false) };
        let there = self.request(same, &probes.gets()).await?;
        let here = self.request(endpoint, &probes.gets()).await?;
        let missed = probes.missed(&there, &here);
        if missed.is_empty() {
            return Ok(false);
        }
        let taken = self.request(endpoint, &missed.others()).await?;
        let Some(twice) = missed.stored(&taken) else { return Ok(false) };
        // Unless they were lost in between.
        Ok(twice.judge(&self.request(same, &twice.gets()).await?).is_some())
    }

    /// New probes, as far as they could be written through an endpoint.
    async fn write(&mut self, endpoint: usize, probes: Probes) -> Option<Probes> {
        let replies = self.request(endpoint, &probes.adds()).await.ok()?;
        probes.stored(&replies)
    }

    async fn prove(&mut self, endpoint: usize, probes: &Probes) -> Proof {
        self.read(endpoint, probes).await.map_or(Proof::Unclear, |replies| probes.judge(&replies))
    }

    async fn read(&mut self, endpoint: usize, probes: &Probes) -> Option<Vec<Reply>> {
        let replies = self.request(endpoint, &probes.gets()).await.ok()?;
        let unclear = replies.iter().filter(|reply| **reply == Reply::ServerError).count();
        self.read_in_round(replies.len(), unclear);
        Some(replies)
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
    use crate::memcached::{Memcached, OnLoss, Options, Transport};

    #[test]
    fn a_watch_that_panics_admits_nothing_more() {
        let options = Options {
            addresses: vec!["127.0.0.1:9".parse().unwrap()],
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
