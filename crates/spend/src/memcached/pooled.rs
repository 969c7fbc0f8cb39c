//! The pooled transport: bb8 over memcache-async, a connection an exchange.
//!
//! What reads replies, what an exchange is and what its failure means is as in the pipelined transport. The guards that the two
//! crates need, each with its reason (docs/decisions/store-transport.md):
//!
//! | guard | without it |
//! |---|---|
//! | [`Checked`] | memcache-async takes any line that is no error for a stored record, reads lines and values of any length, and waits for a round trip a command |
//! | [`Connection::in_flight`] | bb8 hands a connection out again although the exchange on it was cancelled, and its next user reads the reply |
//! | [`Connection::is_quiet`] | a connection that ended, or was sent a reply too many, while it was idle is used |
//! | [`Core::turns`] | bb8 serves some waiters while others starve |
//! | [`Breaker`] | each connection of a frozen server costs a caller its patience, where a pipeline has one to lose |
//! | [`maintain`] | an idle connection that is dead, and a store that is back, go unnoticed |
//! | [`Connection::ends`] | connections that were made together are replaced together |

mod breaker;

use super::checked::Checked;
use super::endpoint::{Carrier, Connected, Endpoint};
use super::failure::{Failure, broken};
use super::options::{Limits, Pool};
use super::protocol::{Command, Kind, RecordKey, Reply};
use super::stats::Counters;
use super::world::{instant, jittered, random_bytes, since};
use crate::Unknown;
use crate::exchange_log::Entry;
use bb8::{ManageConnection, RunError};
use breaker::Breaker;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The pool of one address.
pub(crate) struct Pooled {
    core: Arc<Core>,
    maintenance: JoinHandle<()>,
}

struct Core {
    pool: bb8::Pool<Connector>,
    /// As many turns as connections: FIFO, where bb8 is not.
    turns: Semaphore,
    size: usize,
    endpoint: Arc<Endpoint>,
    breaker: Breaker,
    options: Pool,
    limits: Limits,
    counters: Arc<Counters>,
}

impl Pooled {
    /// Builds the pool on the present runtime. Until a connection is proven, everything is refused.
    pub(crate) fn start(
        endpoint: &Arc<Endpoint>,
        options: &Pool,
        limits: Limits,
        counters: &Arc<Counters>,
    ) -> Self {
        let size = options.size.max(1);
        let pool = bb8::Pool::builder()
            .max_size(u32::try_from(size).unwrap_or(u32::MAX))
            .min_idle(u32::try_from(size).ok())
            .connection_timeout(options.checkout_timeout)
            .idle_timeout(None)
            // Each connection has an end of its own before that; without this bb8 would not look after its pool at all.
            // It does so by the machine's clock, which a simulation has no use for.
            .max_lifetime((!endpoint.is_simulated()).then_some(options.max_lifetime))
            // Also how soon it tries again to connect: at the first try a restarted store may not hold the probes yet.
            .reaper_rate(Duration::from_millis(250))
            .retry_connection(false)
            // The one that idled longest comes next: so the background probe gets round to all of them.
            .queue_strategy(bb8::QueueStrategy::Fifo)
            .test_on_check_out(false)
            .build_unchecked(Connector {
                endpoint: Arc::clone(endpoint),
                max_lifetime: options.max_lifetime,
            });
        let core = Arc::new(Core {
            pool,
            turns: Semaphore::new(size),
            size,
            endpoint: Arc::clone(endpoint),
            breaker: Breaker::default(),
            options: options.clone(),
            limits,
            counters: Arc::clone(counters),
        });
        let carrier: Weak<dyn Carrier> = Arc::<Core>::downgrade(&core);
        endpoint.carried_by(carrier);
        let maintenance = tokio::spawn(maintain(Arc::clone(&core)));
        Self { core, maintenance }
    }

    /// Sends all commands in one write. There is no reply before the last one has come.
    pub(crate) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        self.core.exchange(commands, entry).await
    }

    pub(crate) fn is_up(&self) -> bool {
        self.core.breaker.is_closed()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.core.outstanding()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.maintenance.abort();
    }
}

impl Carrier for Core {
    fn outstanding(&self) -> usize {
        self.size - self.turns.available_permits().min(self.size)
    }

    fn capacity(&self) -> usize {
        self.size
    }
}

impl Core {
    async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        if !self.breaker.is_closed() {
            return Err(Failure::NotSent(Unknown::Unavailable(io::ErrorKind::NotConnected)));
        }
        let checkout = self.checkout().await;
        entry.waited_for_pool(since(entry.began));
        let (_turn, connection) = checkout.map_err(Failure::NotSent)?;
        if !self.breaker.is_closed() {
            return Err(Failure::NotSent(self.endpoint.failure())); // the breaker opened while this caller waited
        }
        let mut noting = Noting { connection, entry, slow: self.limits.slow };
        match timeout(self.limits.patience, noting.connection.exchange(commands)).await {
            Ok(Ok(replies)) => {
                self.breaker.succeeded();
                Ok(replies)
            }
            Ok(Err(error)) => Err(Failure::Sent(self.failed(broken(&error)))),
            Err(_) => Err(Failure::Sent(self.failed(Unknown::TimedOut))),
        }
    }

    async fn checkout(&self) -> Result<(SemaphorePermit<'_>, bb8::PooledConnection<'_, Connector>), Unknown> {
        let turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                self.counters.pool_waited();
                let turn = timeout(self.options.checkout_timeout, self.turns.acquire()).await;
                let turn = turn.map_err(|_| Unknown::Overloaded)?;
                turn.map_err(|_| Unknown::Overloaded)? // never closed
            }
        };
        let began = instant();
        loop {
            match self.pool.get().await {
                Ok(mut connection) => {
                    if connection.is_quiet().await {
                        return Ok((turn, connection));
                    }
                    // It was closed or received bytes while idle: take another one, until the checkout times out.
                    if since(began) > self.options.checkout_timeout {
                        return Err(self.failed(Unknown::Garbled));
                    }
                }
                // A turn was free, so it was connecting that took too long.
                Err(RunError::TimedOut) => return Err(self.failed(Unknown::TimedOut)),
                Err(RunError::User(error)) => return Err(self.failed(broken(&error))),
            }
        }
    }

    fn failed(&self, reason: Unknown) -> Unknown {
        if self.breaker.failed() {
            self.endpoint.failed(reason);
        }
        reason
    }
}

/// A caller's exchange. Dropping it writes the times to the exchange log, however the exchange ended.
struct Noting<'a, 'b> {
    connection: bb8::PooledConnection<'a, Connector>,
    entry: &'a mut Entry<'b>,
    slow: Duration,
}

impl Drop for Noting<'_, '_> {
    fn drop(&mut self) {
        let checked = &self.connection.checked;
        self.entry.change(|exchange| {
            (exchange.written, exchange.first_byte) = checked.stamps();
            if since(exchange.began) > self.slow {
                exchange.tcp = checked.tcp_facts();
            }
        });
    }
}

/// Maintains the pool: proves idle connections again, and closes the breaker when the store is back.
async fn maintain(core: Arc<Core>) {
    loop {
        if core.breaker.is_closed() {
            let pause = tokio::time::sleep(core.options.idle_probe);
            tokio::select! {
                biased;
                () = core.breaker.opened.notified() => {}
                () = pause => prove_idle(&core).await,
            }
            continue;
        }
        let mut backoff = core.endpoint.backoff();
        while let Err(reason) = core.endpoint.connect_proven().await {
            // A server at its limit takes no more connections, and may answer on those it has.
            if has_proven(&core).await {
                break;
            }
            core.endpoint.failed(reason);
            backoff.wait().await;
        }
        warm_up(&core).await;
        core.breaker.close();
    }
}

/// Opens all connections before callers are admitted, so that callers do not wait for them.
async fn warm_up(core: &Core) {
    let mut all = Vec::new(); // all at once, or the same one would be taken again and again
    for _ in 0..2 * core.size {
        let Ok(mut connection) = core.pool.get().await else { return };
        if connection.is_quiet().await {
            all.push(connection); // those that died are dropped, and bb8 makes others
        }
        if all.len() == core.size {
            return;
        }
    }
}

/// Whether an idle connection of the pool answers.
async fn has_proven(core: &Core) -> bool {
    if core.pool.state().idle_connections == 0 {
        return false;
    }
    let Ok(mut connection) = core.pool.get().await else { return false };
    connection.is_quiet().await
        && matches!(timeout(core.limits.patience, connection.prove()).await, Ok(Ok(())))
}

/// Sends a `get` on each idle connection. A connection that does not answer is dropped, and bb8 makes another.
async fn prove_idle(core: &Core) {
    for _ in 0..core.pool.state().idle_connections {
        let Ok(_turn) = core.turns.try_acquire() else { return };
        let Ok(mut connection) = core.pool.get().await else { return };
        if !connection.is_quiet().await {
            continue;
        }
        let proven = timeout(core.limits.patience, connection.prove()).await;
        if !matches!(proven, Ok(Ok(()))) {
            core.failed(Unknown::TimedOut);
        }
    }
}

/// Makes bb8's connections.
struct Connector {
    endpoint: Arc<Endpoint>,
    max_lifetime: Duration,
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = io::Error;

    async fn connect(&self) -> Result<Connection, io::Error> {
        let (stream, connected) = self.endpoint.connect_proven().await.map_err(io::Error::other)?;
        Ok(Connection {
            checked: Checked::new(stream),
            in_flight: AtomicBool::new(false),
            // Shortened at random by up to a half: connections that were made together are not replaced together.
            ends: instant() + jittered(self.max_lifetime),
            _connected: connected,
        })
    }

    /// Never called: [`maintain`] proves connections while they are idle, so that no caller waits for it.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), io::Error> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.in_flight.load(Ordering::Relaxed) || instant() >= connection.ends
    }
}

struct Connection {
    checked: Checked,
    /// Set before each exchange, cleared when it has come to its end: a connection on which a reply is still to come
    /// must not be used again, or its next user would read it.
    in_flight: AtomicBool,
    /// When it is replaced.
    ends: Instant,
    _connected: Connected,
}

impl Connection {
    async fn exchange<const N: usize>(&mut self, commands: [&Command; N]) -> Result<[Reply; N], io::Error> {
        self.in_flight.store(true, Ordering::Relaxed);
        let replies = self.checked.exchange(commands).await?;
        self.in_flight.store(false, Ordering::Relaxed);
        Ok(replies)
    }

    /// Whether nothing came while it was idle; broken otherwise.
    async fn is_quiet(&mut self) -> bool {
        let quiet = self.checked.is_quiet().await;
        self.in_flight.store(!quiet, Ordering::Relaxed);
        quiet
    }

    /// Any `get` that is answered shows that the connection works.
    async fn prove(&mut self) -> Result<(), io::Error> {
        let nothing = RecordKey::new(Kind::Probe, &random_bytes());
        self.exchange([&Command::Get(nothing)]).await.map(drop)
    }
}
