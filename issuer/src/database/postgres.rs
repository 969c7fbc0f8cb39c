//! PostgreSQL: where the server is, connections that come back, and TLS.
//!
//! A statement that gets no answer in time ends its connection, and so does a transaction that cannot be rolled back: what the
//! server does with it then happens before it gives the locks of that connection to another one.

mod tls;

use super::value::{Error, Result, Value, sentence};
use crate::config::{AccountsConfig, read_secret};
use futures_util::{StreamExt, TryStreamExt};
use postern_daemon::tls::store_client_config;
use postern_net::Lookups;
use postern_net::dial::interleaved;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};
use tls::Connector;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Statement};

/// Longest wait for a connection to one address, and for an answer, to which a connection to one host of the URL belongs as well.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(4);
/// Longest wait for a lock that another issuer holds while it makes keys.
const LOCK: Duration = Duration::from_secs(16);
/// Rows that are read at a time.
const ROWS: usize = 256;
/// Longest wait for the addresses of a host. With the settings of most systems, a name server that is down costs five seconds.
const LOOKUP: Duration = Duration::from_secs(10);
/// Lifetime of a result that comes later: longer than the pause between two attempts.
const LOOKUP_KEPT: Duration = Duration::from_mins(1);
/// Pause after a connection that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// The server ends a session that stops within a transaction or vanishes, so that another issuer gets its locks. Each commit is
/// on the server's disk.
const OPTIONS: &str = "-c idle_in_transaction_session_timeout=4s -c lock_timeout=3s -c synchronous_commit=on \
     -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3";
/// What the server then shows.
const IDLE_TIMEOUT: &str = "4s";
const LEAST_VERSION: u32 = 140_000;
/// Drives the connections.
static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(1).thread_name("database").enable_all().build()
});

/// The server of `[accounts] database`.
#[derive(Debug)]
pub(crate) struct Server {
    /// Each with one host, in the order in which they are tried.
    hosts: Vec<tokio_postgres::Config>,
    lookups: Lookups,
    password_file: Option<PathBuf>,
    tls: Connector,
    /// The database, for people.
    pub(crate) place: String,
}

/// A connection that is made on demand. A failed one is not retried by itself: the caller knows what that would do twice.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) server: Arc<Server>,
    live: RefCell<Option<Live>>,
    retry_at: Cell<Option<Instant>>,
    /// `true` while a lost connection must not be replaced: it has a transaction or a lock.
    is_held: Cell<bool>,
}

#[derive(Debug)]
struct Live {
    client: Arc<Client>,
    statements: HashMap<String, Statement>,
    task: AbortHandle,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Returns the server of a configuration; `None` for SQLite. The error is the end of a sentence.
    pub(crate) fn of(accounts: &AccountsConfig) -> Result<Option<Arc<Self>>, String> {
        let Some(url) = &accounts.database else { return Ok(None) };
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err("is not a URL such as \"postgres://postern@db.example/postern\"".to_owned());
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots, mut others) = ("verify-full", None, String::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = value,
                Some(("sslrootcert", value)) => roots = Some(PathBuf::from(value)),
                _ => others += &format!("{}{pair}", if others.is_empty() { "?" } else { "&" }),
            }
        }
        let parsed = format!("{base}{others}").parse::<tokio_postgres::Config>();
        let config = parsed.map_err(|error| format!("cannot be used: {}", sentence(&error)))?;
        if config.get_password().is_some() {
            return Err(
                "has a password, which others may read here: put it into a file ([accounts] password_file) or into PGPASSWORD"
                    .to_owned(),
            );
        }
        let mut hosts = one_host_each(&config)?;
        let mode = match mode {
            "disable" if !hosts.iter().all(is_on_this_machine) => {
                return Err(
                    "has sslmode=disable for a host that is not this machine, where others on the way could read and change \
                     everything: leave it out, with sslrootcert=FILE for an authority of yours"
                        .to_owned(),
                );
            }
            "disable" => SslMode::Disable,
            "verify-full" => SslMode::Require,
            other => {
                return Err(format!(
                    "has sslmode={other}, which does not check who answers: write verify-full, the default, with \
                     sslrootcert=FILE for an authority of yours, or disable for a server on this machine"
                ));
            }
        };
        let tls = store_client_config(roots.as_deref(), None)
            .map_err(|error| format!("cannot be used: {error}"))?;
        let place = place(&config);
        let options = [OPTIONS, config.get_options().unwrap_or_default()].join(" ");
        for host in &mut hosts {
            host.ssl_mode(mode).options(&options).application_name("postern issuer");
            host.connect_timeout(CONNECT).tcp_user_timeout(ANSWER).keepalives_idle(ANSWER);
            host.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let password_file = accounts.password_file.clone();
        Ok(Some(Arc::new(Self {
            hosts,
            lookups: Lookups::keeping(LOOKUP_KEPT),
            password_file,
            tls: Connector(tls),
            place,
        })))
    }

    fn password(&self) -> Result<Option<Vec<u8>>> {
        let Some(file) = &self.password_file else {
            return Ok(std::env::var("PGPASSWORD").ok().map(String::into_bytes));
        };
        let text = read_secret(file).map_err(|why| {
            Error::Away(format!("the file {} ([accounts] password_file) {why}", file.display()))
        })?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line).to_vec()))
    }

    /// Connects to the first host that takes writes. One that accepts and then hangs does not keep the others from their turn.
    async fn connect(&self) -> Result<Live> {
        let mut failed = Err(Error::Away("no host was tried".to_owned()));
        for host in &self.hosts {
            let connecting = async {
                let host = self.looked_up(host.clone()).await?;
                timeout(ANSWER, self.connect_to(host)).await.unwrap_or_else(|_| Err(silent(ANSWER)))
            };
            failed = connecting.await;
            if failed.is_ok() {
                break;
            }
        }
        failed
    }

    /// Adds the addresses of a host that has a name.
    async fn looked_up(&self, mut config: tokio_postgres::Config) -> Result<tokio_postgres::Config> {
        let ([Host::Tcp(name)], []) = (config.get_hosts(), config.get_hostaddrs()) else { return Ok(config) };
        let (name, mut families) = (name.clone(), self.lookups.find(name, 0));
        let found = timeout(LOOKUP, families.first(|found| Some(found.to_vec()))).await;
        let unknown = |why: &dyn Display| Error::Away(format!("no address of {name} is known: {why}"));
        let found = found.map_err(|_| unknown(&format!("no answer within {} s", LOOKUP.as_secs())))?;
        let found = found.ok_or_else(|| unknown(&families.error()))?;
        // In turns, so that a broken family does not use up the time.
        let found = interleaved(found, usize::MAX, SocketAddr::is_ipv6);
        found.iter().skip(1).for_each(|_| _ = config.host(&name)); // one for each address
        found.iter().for_each(|address| _ = config.hostaddr(address.ip()));
        Ok(config)
    }

    async fn connect_to(&self, mut config: tokio_postgres::Config) -> Result<Live> {
        if let Some(password) = self.password()? {
            config.password(password);
        }
        let (client, connection) = config.connect(self.tls.clone()).await?;
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let live = Live { client: Arc::new(client), statements: HashMap::new(), task };
        let what = "SELECT version(), current_setting('server_version_num'), current_setting('fsync'), \
                    current_setting('idle_in_transaction_session_timeout')";
        let row = live.client.query_one(what, &[]).await?;
        let [version, number, fsync, timeout]: [&str; 4] =
            [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?];
        let is_known = version.starts_with("PostgreSQL ") && !version.contains("-YB-");
        if !is_known || number.parse().is_ok_and(|number: u32| number < LEAST_VERSION) {
            return Err(Error::Away(format!("it is {version}, and only PostgreSQL from 14 on was tried")));
        }
        if fsync == "off" {
            return Err(Error::Away(
                "its fsync is off, so a crash would forget which tokens were issued: set fsync = on"
                    .to_owned(),
            ));
        }
        if timeout != IDLE_TIMEOUT {
            return Err(Error::Away(format!(
                "a session's idle_in_transaction_session_timeout is {timeout} instead of {IDLE_TIMEOUT}, so a pooler such as \
                 PgBouncer does not pass on what a session asks for: name the server itself"
            )));
        }
        Ok(live)
    }
}

fn silent(waited: Duration) -> Error {
    Error::Away(format!("it has not answered for {} s", waited.as_secs()))
}

/// Returns a configuration for each host of a URL. The error is the end of a sentence.
fn one_host_each(url: &tokio_postgres::Config) -> Result<Vec<tokio_postgres::Config>, String> {
    let (names, addresses, ports) = (url.get_hosts(), url.get_hostaddrs(), url.get_ports());
    let count = names.len().max(addresses.len());
    let fits = |given: usize, least: usize| given <= least || given == count;
    if count == 0 || !fits(names.len(), 0) || !fits(addresses.len(), 0) || !fits(ports.len(), 1) {
        return Err("names no host, or not one address and one port for each".to_owned());
    }
    let one = |index: usize| {
        let mut config = tokio_postgres::Config::new();
        match names.get(index) {
            Some(Host::Tcp(name)) => _ = config.host(name),
            Some(Host::Unix(path)) => _ = config.host_path(path),
            None => {}
        }
        addresses.get(index).into_iter().for_each(|address| _ = config.hostaddr(*address));
        ports.get(index).or(ports.first()).into_iter().for_each(|port| _ = config.port(*port));
        url.get_user().into_iter().for_each(|user| _ = config.user(user));
        url.get_dbname().into_iter().for_each(|name| _ = config.dbname(name));
        config.channel_binding(url.get_channel_binding()).ssl_negotiation(url.get_ssl_negotiation());
        config
    };
    Ok((0..count).map(one).collect())
}

/// `true` if no other machine is on the way to the host of `config`.
fn is_on_this_machine(config: &tokio_postgres::Config) -> bool {
    match (config.get_hostaddrs().first(), config.get_hosts().first()) {
        (Some(address), _) => address.is_loopback(),
        (None, Some(Host::Tcp(name))) => {
            name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
        (None, Some(Host::Unix(_))) => true,
        (None, None) => false,
    }
}

fn place(config: &tokio_postgres::Config) -> String {
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let hosts: Vec<_> = config.get_hosts().iter().map(host).collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().or(config.get_user()).unwrap_or_default())
}

impl Session {
    /// Creates a session that connects when it is used.
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server, live: RefCell::default(), retry_at: Cell::default(), is_held: Cell::new(false) }
    }

    pub(super) fn run(&self, sql: &str, values: &[Value]) -> Result<u64> {
        let ((client, statement), values) = (self.statement(sql)?, values.to_vec());
        self.wait(async move { Ok(client.execute_raw(&statement, values).await?) })
    }

    pub(super) fn each<E: From<Error>>(
        &self,
        sql: &str,
        values: &[Value],
        mut each: impl FnMut(&tokio_postgres::Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let ((client, statement), values) = (self.statement(sql)?, values.to_vec());
        let mut stream =
            self.wait(async move { Ok(Box::pin(client.query_raw(&statement, values).await?)) })?;
        loop {
            let read = async move {
                let rows: Vec<_> = stream.as_mut().take(ROWS).try_collect().await?;
                Ok((rows, stream))
            };
            let (rows, rest) = self.wait(read)?;
            rows.iter().try_for_each(&mut each)?;
            if rows.len() < ROWS {
                return Ok(());
            }
            stream = rest;
        }
    }

    pub(super) fn batch(&self, sql: &str) -> Result<()> {
        let (client, sql) = (self.client()?, sql.to_owned());
        self.wait(async move { Ok(client.batch_execute(&sql).await?) })
    }

    pub(super) fn begin(&self) -> Result<()> {
        if self.is_held.replace(false) {
            self.end(); // a panic has left a transaction
        }
        self.batch("BEGIN")?;
        self.is_held.set(true);
        Ok(())
    }

    pub(super) fn commit(&self) -> Result<()> {
        let committed = self.batch("COMMIT");
        self.is_held.set(false);
        if committed.is_err() {
            self.end();
        }
        committed
    }

    pub(super) fn rollback(&self) {
        let is_undone = self.batch("ROLLBACK").is_ok();
        self.is_held.set(false);
        if !is_undone {
            self.end();
        }
    }

    /// Takes an advisory lock until [`Session::release`], or until the connection is lost; then every statement fails.
    pub(crate) fn hold(&self, lock: i64) -> Result<()> {
        let client = self.client()?;
        let sql = format!(
            "SET idle_session_timeout = '60s'; SET lock_timeout = '15s'; SELECT pg_advisory_lock({lock}); RESET lock_timeout"
        );
        self.wait_for(LOCK, async move { Ok(client.batch_execute(&sql).await?) })?;
        self.is_held.set(true);
        Ok(())
    }

    pub(crate) fn release(&self) {
        let is_released = self.batch("SELECT pg_advisory_unlock_all(); RESET idle_session_timeout").is_ok();
        self.is_held.set(false);
        if !is_released {
            self.end();
        }
    }

    fn end(&self) {
        drop(self.live.take());
    }

    fn client(&self) -> Result<Arc<Client>> {
        if let Some(live) = &*self.live.borrow()
            && !live.client.is_closed()
        {
            return Ok(live.client.clone());
        }
        if self.is_held.get() {
            return Err(Error::Away("the connection to it was lost".to_owned()));
        }
        if self.retry_at.get().is_some_and(|at| Instant::now() < at) {
            return Err(Error::Away("it could not be reached a moment ago".to_owned()));
        }
        let server = self.server.clone();
        let most = (LOOKUP + ANSWER) * server.hosts.len() as u32 + ANSWER;
        let connected = self.wait_for(most, async move { server.connect().await });
        self.retry_at.set(connected.is_err().then(|| Instant::now() + PAUSE));
        let live = connected?;
        let client = live.client.clone();
        self.live.replace(Some(live));
        Ok(client)
    }

    /// Returns the prepared statement of `sql`.
    fn statement(&self, sql: &str) -> Result<(Arc<Client>, Statement)> {
        let client = self.client()?;
        let known = self.live.borrow().as_ref().and_then(|live| live.statements.get(sql).cloned());
        if let Some(known) = known {
            return Ok((client, known));
        }
        let numbered = sql.replace('?', "$");
        let preparing = client.clone();
        let made = self.wait(async move { Ok(preparing.prepare(&numbered).await?) })?;
        if let Some(live) = &mut *self.live.borrow_mut() {
            live.statements.insert(sql.to_owned(), made.clone());
        }
        Ok((client, made))
    }

    fn wait<T: Send + 'static>(&self, answer: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.wait_for(ANSWER, answer)
    }

    /// Waits for an answer, in any context. Without one in time, nobody knows what the connection will still do: it is closed.
    fn wait_for<T: Send + 'static>(
        &self,
        most: Duration,
        answer: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let runtime = RUNTIME.as_ref().map_err(|error| Error::Away(error.to_string()))?;
        let (sender, answered) = mpsc::sync_channel(1);
        runtime.spawn(async move { drop(sender.send(timeout(most, answer).await)) });
        match answered.recv() {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) | Err(_) => {
                self.end();
                Err(silent(most))
            }
        }
    }
}

#[cfg(test)]
mod tests;
