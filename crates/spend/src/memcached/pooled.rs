//! The pooled transport: bb8 over memcache-async, one exchange per connection at a time.
//!
//! Parsing of replies, exchanges and failures are as in the pipelined transport. The guards that the two crates need, each with
//! its reason (docs/decisions/store-transport.md):
//!
//! | guard | without it |
//! |---|---|
//! | [`understood`] | memcache-async takes any non-error line as stored, reads unbounded lines, and waits a round trip per command |
//! | [`Connection::in_flight`] | bb8 hands out a connection whose exchange was cancelled, and its next user reads the reply |
//! | [`Connection::is_quiet`] | a connection that ended, or received an extra reply, while it was idle is used |
//! | [`Core::turns`] | bb8 serves some waiters while others starve |
//! | [`Breaker`] | each connection of a frozen server costs a caller a timeout, where a pipeline has one connection to lose |
//! | [`maintain`] | a dead idle connection, and a recovered store, go unnoticed |
//! | [`Connection::ends`] | connections that were made together are replaced together |

use super::endpoint::{Connected, Endpoint};
use super::options::Pool;
use super::protocol::{Command, Failure, Kind, NOT_CONNECTED, RecordKey, Reply, Value, exptime};
use super::serial::SerialConnection;
use super::stats::Counters;
use super::world::{instant, jittered, random_bytes, since};
use crate::Unknown;
use crate::exchange_log::Entry;
use bb8::{ManageConnection, RunError};
use memcache_async::ascii::Protocol;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, ReadBuf, join};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::timeout;

/// Consecutive failures after which callers are refused and only the background retries.
const ENOUGH: u32 = 3;

pub(crate) struct Pooled {
    core: Arc<Core>,
    maintenance: JoinHandle<()>,
}

struct Core {
    pool: bb8::Pool<Connector>,
    /// One turn per connection: FIFO, unlike bb8.
    turns: Semaphore,
    size: usize,
    endpoint: Arc<Endpoint>,
    breaker: Breaker,
    options: Pool,
    counters: Arc<Counters>,
}

impl Pooled {
    /// Builds the pool on the current runtime. Until a connection is proven, everything is refused.
    pub(crate) fn start(endpoint: &Arc<Endpoint>, options: &Pool, counters: &Arc<Counters>) -> Self {
        let size = options.size.max(1);
        let pool = bb8::Pool::builder()
            .max_size(u32::try_from(size).unwrap_or(u32::MAX))
            .min_idle(u32::try_from(size).ok())
            .connection_timeout(options.checkout_timeout)
            .idle_timeout(None)
            // Each connection has its own, earlier end; without this setting bb8 would not maintain its pool at all. bb8 uses
            // the machine's clock, which is of no use in a simulation.
            .max_lifetime(endpoint.world.is_none().then_some(options.max_lifetime))
            // Also bb8's interval between attempts to connect: at the first attempt a restarted store may not hold the probes
            // yet.
            .reaper_rate(Duration::from_millis(250))
            .retry_connection(false)
            // The connection idle for longest comes next, so the background probe reaches all of them.
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
            counters: Arc::clone(counters),
        });
        let maintenance = tokio::spawn(maintain(Arc::clone(&core)));
        Self { core, maintenance }
    }

    /// Sends all commands in one write. Returns after the last reply.
    pub(crate) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        let core = &*self.core;
        if !core.breaker.is_closed() {
            return Err(Failure::NotSent(NOT_CONNECTED));
        }
        let checkout = core.checkout().await;
        entry.waited_for_pool(since(entry.began));
        let (_turn, connection) = checkout.map_err(Failure::NotSent)?;
        if !core.breaker.is_closed() {
            return Err(Failure::NotSent(core.endpoint.failure())); // the breaker opened while this caller waited
        }
        let mut noting = Noting { connection, entry, slow: core.endpoint.options.slow };
        match timeout(core.endpoint.options.timeout, noting.connection.exchange(commands)).await {
            Ok(Ok(replies)) => {
                core.breaker.succeeded();
                Ok(replies)
            }
            Ok(Err(reason)) => Err(Failure::Sent(core.failed(reason))),
            Err(_) => Err(Failure::Sent(core.failed(Unknown::TimedOut))),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.core.breaker.is_closed()
    }

    /// Returns the number of connections in use, and its maximum.
    pub(crate) fn load(&self) -> (usize, usize) {
        let size = self.core.size;
        (size - self.core.turns.available_permits().min(size), size)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.maintenance.abort();
    }
}

impl Core {
    async fn checkout(&self) -> Result<(SemaphorePermit<'_>, bb8::PooledConnection<'_, Connector>), Unknown> {
        let turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                self.counters.pool_waits.fetch_add(1, Ordering::Relaxed);
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
                // A turn was free, so connecting took too long.
                Err(RunError::TimedOut) => return Err(self.failed(Unknown::TimedOut)),
                Err(RunError::User(reason)) => return Err(self.failed(reason)),
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
        let serial = &self.connection.serial;
        self.entry.change(|exchange| {
            (exchange.written, exchange.first_byte) = (serial.written, serial.first_byte);
            if since(exchange.began) > self.slow {
                exchange.tcp = serial.stream.tcp_facts();
            }
        });
    }
}

/// A circuit breaker: open while the store does not answer, so that callers are refused immediately.
#[derive(Default)]
struct Breaker {
    closed: AtomicBool,
    failures: AtomicU32,
    opened: Notify,
}

impl Breaker {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.closed.store(true, Ordering::Release);
    }

    fn succeeded(&self) {
        // A plain load first: the flag's cache line stays shared while everything works.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure. Returns `true` if it opened the breaker.
    fn failed(&self) -> bool {
        let enough = self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= ENOUGH;
        let opened = enough && self.closed.swap(false, Ordering::AcqRel);
        if opened {
            self.opened.notify_one();
        }
        opened
    }
}

/// Maintains the pool: proves idle connections, and closes the breaker when the store is back.
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
        while let Err(reason) = core.endpoint.connect_answering().await {
            // A server at its connection limit accepts no more connections, but may answer on existing ones.
            if idle_answers(&core).await {
                break;
            }
            core.endpoint.failed(reason);
            backoff.wait().await;
        }
        warm_up(&core).await;
        core.breaker.close();
    }
}

/// Opens all connections before callers are admitted, so that no caller waits for them.
async fn warm_up(core: &Core) {
    let mut all = Vec::new(); // held together, or the same connection would be taken repeatedly
    for _ in 0..2 * core.size {
        let Ok(mut connection) = core.pool.get().await else { return };
        if connection.is_quiet().await {
            all.push(connection); // dead ones are dropped, and bb8 makes others
        }
        if all.len() == core.size {
            return;
        }
    }
}

/// Returns `true` if an idle connection of the pool answers.
async fn idle_answers(core: &Core) -> bool {
    if core.pool.state().idle_connections == 0 {
        return false;
    }
    let Ok(mut connection) = core.pool.get().await else { return false };
    connection.is_quiet().await && connection.answers(core.endpoint.options.timeout).await
}

/// Sends a `get` on each idle connection. Connections without an answer are dropped, and bb8 makes others.
async fn prove_idle(core: &Core) {
    for _ in 0..core.pool.state().idle_connections {
        let Ok(_turn) = core.turns.try_acquire() else { return };
        let Ok(mut connection) = core.pool.get().await else { return };
        if !connection.is_quiet().await {
            continue;
        }
        if !connection.answers(core.endpoint.options.timeout).await {
            core.failed(Unknown::TimedOut);
        }
    }
}

/// The maker of bb8's connections.
struct Connector {
    endpoint: Arc<Endpoint>,
    max_lifetime: Duration,
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = Unknown;

    async fn connect(&self) -> Result<Connection, Unknown> {
        let (serial, connected) = self.endpoint.connect_answering().await?;
        Ok(Connection {
            serial,
            in_flight: false,
            // Randomly shortened by up to a half, so that connections made together are not replaced together.
            ends: instant() + jittered(self.max_lifetime),
            _connected: connected,
        })
    }

    /// Never called: [`maintain`] proves connections while they are idle, so that no caller waits for it.
    async fn is_valid(&self, _: &mut Connection) -> Result<(), Unknown> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.in_flight || instant() >= connection.ends
    }
}

struct Connection {
    serial: SerialConnection,
    /// Set before each exchange and cleared after its last reply: with a reply outstanding the connection must not be used
    /// again, or its next user would read that reply.
    in_flight: bool,
    /// The moment after which it is replaced.
    ends: Instant,
    _connected: Connected,
}

impl Connection {
    async fn exchange<const N: usize>(&mut self, commands: [&Command; N]) -> Result<[Reply; N], Unknown> {
        self.in_flight = true;
        let mut replied = Vec::with_capacity(N);
        let read = |reply, bytes: &[u8]| replied.push((reply, bytes.to_vec()));
        self.serial.send_and_read(&commands.map(|command| *command), read).await?;
        let mut replies = [Reply::Miss; N];
        for (place, (command, (reply, bytes))) in replies.iter_mut().zip(commands.into_iter().zip(replied)) {
            // Both parsers of the reply must agree.
            let agreed = understood(command, &bytes).await.filter(|understood| *understood == reply);
            *place = agreed.ok_or(Unknown::Garbled)?;
        }
        self.in_flight = false;
        Ok(replies)
    }

    /// Returns `true` if nothing arrived while it was idle, as far as this runtime has seen; otherwise marks the connection as
    /// broken. Unexpected bytes would be taken for the next command's reply, and a closed stream gives no reply.
    async fn is_quiet(&mut self) -> bool {
        let look = poll_fn(|cx| {
            let read = Pin::new(&mut self.serial.stream).poll_read(cx, &mut ReadBuf::new(&mut [0; 1]));
            Poll::Ready(read.is_pending())
        });
        let quiet = unconstrained(look).await;
        self.in_flight = !quiet;
        quiet
    }

    /// Returns `true` if a `get` has any reply within `patience`.
    async fn answers(&mut self, patience: Duration) -> bool {
        let nothing = RecordKey::new(Kind::Probe, &random_bytes());
        matches!(timeout(patience, self.exchange([&Command::Get(nothing)])).await, Ok(Ok(_)))
    }
}

/// Returns the reply to a command as memcache-async understands it, from bytes that the strict parser of the pipelined transport
/// has accepted: one complete reply, so that memcache-async neither reads a line that it would misinterpret nor allocates a
/// length that a server made up. `None` if it fails, or would have sent other bytes.
async fn understood(command: &Command, reply: &[u8]) -> Option<Reply> {
    let (mut sent, mut meant) = (Vec::new(), Vec::new());
    command.encode(&mut sent);
    let mut protocol = Protocol::new(join(reply, &mut meant));
    let understood = match command {
        Command::Get(key) => {
            protocol.get(key.as_bytes()).await.map(|value| Value::of(key, &value).map(Reply::Hit))
        }
        Command::Add { key, value, expires } => {
            protocol.add(key, value.as_bytes(), exptime(*expires)).await.map(|()| Some(Reply::Stored))
        }
    };
    let understood = understood.unwrap_or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Some(Reply::Miss),
        io::ErrorKind::AlreadyExists => Some(Reply::NotStored),
        io::ErrorKind::Other => Some(Reply::ServerError),
        _ => None,
    });
    drop(protocol);
    understood.filter(|_| sent == meant)
}
