//! The pooled transport: bb8 over memcache-async, one exchange per connection at a time.
//!
//! Parsing of replies, exchanges and failures are as in the pipelined transport. The guards that the two crates need, each with
//! its reason (docs/decisions/store-transport.md):
//!
//! | guard | without it |
//! |---|---|
//! | [`understood`] | memcache-async takes any non-error line as stored, reads unbounded lines, and waits a round trip per command |
//! | [`Connection::in_flight`] | bb8 hands out a connection whose exchange was cancelled, and its next user reads the reply |
//! | [`Connector::is_valid`] | a connection that ended, or received an extra reply, while it was idle is used |
//! | [`Pooled::turns`] | bb8 serves some waiters while others starve |
//! | [`refill`] | bb8 tries to connect once, so a recovered store goes unnoticed |
//! | [`Silence`] | bb8 hands out each connection to a frozen server, and a token is lost on each |

use super::endpoint::{Endpoint, is_answer, reads};
use super::protocol::{Command, Failure, Reply, Value, exptime};
use super::serial::SerialConnection;
use super::stats::Totals;
use super::world::since;
use crate::Unknown;
use crate::exchange_log::Entry;
use bb8::ManageConnection;
use memcache_async::ascii::Protocol;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf, join};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::timeout;

const REFILL: Duration = Duration::from_millis(250);

pub(crate) struct Pooled {
    pool: bb8::Pool<Connector>,
    /// One turn per connection: FIFO, unlike bb8.
    turns: Semaphore,
    size: usize,
    endpoint: Arc<Endpoint>,
    checkout_timeout: Duration,
    counters: Arc<Totals>,
    /// The last attempt to connect failed.
    fails: Arc<AtomicBool>,
    silence: Arc<Silence>,
    refill: JoinHandle<()>,
}

impl Pooled {
    /// Builds the pool on the current runtime. Until a connection is proven, everything is refused.
    pub(crate) fn start(
        endpoint: &Arc<Endpoint>,
        size: usize,
        checkout_timeout: Duration,
        counters: &Arc<Totals>,
    ) -> Self {
        let (size, fails) = (size.max(1), Arc::new(AtomicBool::new(true)));
        let pool = bb8::Pool::builder()
            .max_size(u32::try_from(size).unwrap_or(u32::MAX))
            .min_idle(u32::try_from(size).ok())
            .connection_timeout(checkout_timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .retry_connection(false)
            .build_unchecked(Connector { endpoint: Arc::clone(endpoint), fails: Arc::clone(&fails) });
        let (turns, silence) = (Semaphore::new(size), Arc::new(Silence::default()));
        let refill = tokio::spawn(refill(pool.clone(), size, Arc::clone(&silence), endpoint.options.timeout));
        let (endpoint, counters) = (Arc::clone(endpoint), Arc::clone(counters));
        Self { pool, turns, size, endpoint, checkout_timeout, counters, fails, silence, refill }
    }

    /// Sends all commands in one write. Returns after the last reply.
    pub(crate) async fn exchange<const N: usize>(
        &self,
        commands: [&Command; N],
        entry: &mut Entry<'_>,
    ) -> Result<[Reply; N], Failure> {
        let checkout = self.checkout().await;
        entry.waited_for_pool(since(entry.began));
        let (_turn, connection) = checkout.map_err(Failure::NotSent)?;
        let options = &self.endpoint.options;
        let mut noting = Noting { connection, entry, slow: options.slow };
        let answered = timeout(options.timeout, noting.connection.exchange(commands)).await;
        answered.unwrap_or(Err(Unknown::TimedOut)).map_err(|reason| {
            self.endpoint.failed(reason);
            if reason == Unknown::TimedOut {
                self.silence.begin();
            }
            Failure::Sent(reason)
        })
    }

    /// Returns the number of connections over which the server answered last.
    pub(crate) fn connections(&self) -> usize {
        if self.is_silent() { 0 } else { self.pool.state().connections as usize }
    }

    /// Returns `true` if the server answered last, and there is a connection, or one can be expected: callers that give up end
    /// theirs.
    pub(crate) fn is_up(&self) -> bool {
        !self.is_silent() && !self.fails.load(Ordering::Relaxed) || self.connections() > 0
    }

    fn is_silent(&self) -> bool {
        self.silence.is_on.load(Ordering::Relaxed)
    }

    /// Returns the number of connections in use, and its maximum.
    pub(crate) fn load(&self) -> (usize, usize) {
        (self.size - self.turns.available_permits().min(self.size), self.size)
    }

    async fn checkout(&self) -> Result<(SemaphorePermit<'_>, bb8::PooledConnection<'_, Connector>), Unknown> {
        let turn = match self.turns.try_acquire() {
            Ok(turn) => turn,
            Err(_) => {
                self.counters.pool_waits.fetch_add(1, Ordering::Relaxed);
                let turn = timeout(self.checkout_timeout, self.turns.acquire()).await;
                turn.ok().and_then(Result::ok).ok_or(Unknown::Overloaded)?
            }
        };
        if !self.is_up() {
            return Err(self.endpoint.failure()); // all were lost while this caller waited
        }
        // A turn was free, so connecting took too long.
        let connection = self.pool.get().await.map_err(|_| Unknown::TimedOut)?;
        Ok((turn, connection))
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.refill.abort();
    }
}

/// The time from an exchange without an answer until the next answer: the kernel of a frozen server keeps its connections open,
/// and each of them would cost a token.
#[derive(Default)]
struct Silence {
    is_on: AtomicBool,
    begun: Notify,
}

impl Silence {
    fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
        self.begun.notify_one();
    }
}

/// Connects again where connections are missing: bb8 tries once, and later only if a connection is asked for. Ends the silence
/// with an answer on an idle connection or a new one: a server at its limit of connections accepts none.
async fn refill(pool: bb8::Pool<Connector>, size: usize, silence: Arc<Silence>, patience: Duration) {
    loop {
        _ = timeout(REFILL, silence.begun.notified()).await;
        let is_silent = silence.is_on.load(Ordering::Relaxed);
        if !is_silent && (pool.state().connections as usize) >= size {
            continue;
        }
        // Without an idle connection this asks for a new one, and with fewer connections than wanted for all that are missing.
        let Ok(Ok(mut connection)) = timeout(REFILL, pool.get()).await else { continue };
        if is_silent {
            let answered = timeout(patience, connection.exchange(reads().each_ref())).await;
            if answered.is_ok_and(|replies| replies.is_ok_and(|replies| is_answer(&replies))) {
                silence.is_on.store(false, Ordering::Relaxed);
            }
        }
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

struct Connector {
    endpoint: Arc<Endpoint>,
    fails: Arc<AtomicBool>,
}

impl ManageConnection for Connector {
    type Connection = Connection;
    type Error = Unknown;

    async fn connect(&self) -> Result<Connection, Unknown> {
        let connected = self.endpoint.connect_answering().await;
        self.fails.store(connected.is_err(), Ordering::Relaxed);
        let serial = connected.inspect_err(|reason| self.endpoint.failed(*reason))?;
        Ok(Connection { serial, in_flight: false })
    }

    /// Returns `Ok` if nothing arrived while the connection was idle, as far as this runtime has seen. Unexpected bytes would be
    /// taken for the next command's reply, and a closed stream gives no reply: keep-alive closes one to a peer that vanished.
    async fn is_valid(&self, connection: &mut Connection) -> Result<(), Unknown> {
        let look = poll_fn(|cx| {
            let stream = Pin::new(&mut connection.serial.stream);
            Poll::Ready(stream.poll_read(cx, &mut ReadBuf::new(&mut [0; 1])).is_pending())
        });
        if unconstrained(look).await { Ok(()) } else { Err(Unknown::Garbled) }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.in_flight
    }
}

struct Connection {
    serial: SerialConnection,
    /// Set before each exchange and cleared after its last reply: with a reply outstanding the connection must not be used
    /// again, or its next user would read that reply.
    in_flight: bool,
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
