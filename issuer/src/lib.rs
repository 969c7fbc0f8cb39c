//! The token issuer: publishes its keys and answers blinded token requests of types 2, 5 and 1, singly (RFC 9578, sections 4
//! to 6) and in batches (draft-ietf-privacypass-batched-tokens-09).
//!
//! The issuer learns only that an account requested a token. It never sees the token or its use, and it logs no
//! accounts, addresses or bytes of requests.
//!
//! `issue` handles a token request; `answer` is the table of refusals. `rotation` computes the lifetimes of keys, `keys` keeps
//! their files, `hsm` uses those in an HSM, and `keyring` provides all to requests. `accounts` holds who may request tokens,
//! `quota` how many, and `database` both, and the keys of several issuers. `control` takes operators' commands. `signing` is the
//! CPU pool, in whose `fair_queue` accounts take turns. `recorder` keeps the counts, `page` shows them, and `reload` applies
//! SIGHUP. `openapi` describes the interface for authors of clients, and `representation` is a document that is served to
//! everyone. There is no CORS: web pages must not reach an issuer that may be open to loopback.

mod accounts;
mod answer;
pub mod catalogue;
mod check;
pub mod config;
pub mod control;
mod database;
mod directory;
mod examine;
mod health;
pub mod hsm;
mod issue;
mod keyring;
mod keys;
mod openapi;
mod page;
mod quota;
mod recorder;
mod reload;
mod representation;
mod rotation;
mod server;
mod signing;

pub use check::StartError;
pub use config::{Config, JoinConfig};
pub use examine::{certificates, examine};
pub use quota::{Burst, Quota};
pub use reload::FIXED;

use accounts::{Accounts, Configured};
use control::Control;
use directory::Imprint;
use health::Health;
use issue::Issuance;
use keyring::{Command, Commands, Keyring};
use keys::at_rest::AtRest;
use keys::{KeyStore, KeysError};
use metrics::gauge;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::admin::ProcessContext;
use postern_daemon::listen::{self, BindError};
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{Renewed, TlsConfig};
use postern_token::{DIRECTORY_PATH, UnixSeconds};
use recorder::Recorder;
use reload::{Reloading, authorizer, check_without_keys};
use server::{Routes, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// An issuer that listens, and serves once it is run.
pub struct Issuer {
    local: SocketAddr,
    listener: TcpListener,
    server: Server,
    store: KeyStore,
    control: Control,
    commands: (Commands, mpsc::Receiver<Command>),
    process: ProcessContext,
    parts: Reloading,
    reloader: Option<Reloader<Config>>,
}

impl Issuer {
    /// Checks the configuration, loads the keys (or makes the first ones, some hundred milliseconds of CPU off the
    /// runtime), and opens the socket. Nothing is served before [`Issuer::run`].
    ///
    /// # Errors
    /// A sentence for the operator; [`StartError::exit_code`] returns the exit code.
    pub fn bind(config: Config, process: &ProcessContext) -> BoxFuture<'_, Result<Self, StartError>> {
        Box::pin(Self::open(config, process))
    }

    async fn open(config: Config, process: &ProcessContext) -> Result<Self, StartError> {
        config.check()?;
        let health = Arc::new(Health::new(process.readiness.gate("issuer")));
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose()?;
        tls.iter().for_each(|tls| tls.require_client_certificates(config.listen.requires_certificates()));
        let recorder = Arc::new(Recorder::new());
        let authorizer = authorizer(&config, &health, &recorder)?;
        let state = tokio::task::spawn_blocking({
            let config = config.clone();
            move || open_state(&config)
        });
        let (store, keyring, accounts) = state.await.map_err(|_| StartError::Interrupted)??;
        let control = Control::bind(store.directory())?;
        accounts.set_authorizer(authorizer);
        let settings = reload::settings(&config, process.descriptors, &recorder, tls.as_ref())?;
        let issuance = Issuance {
            accounts: accounts.clone(),
            keyring: keyring.clone(),
            settings: settings.clone(),
            recorder: recorder.clone(),
        };
        let routes = Arc::new(Routes { issuance, rates: Rates::default() });
        let listener = listen::bind("the issuer's listener", config.listen.address).await?;
        let local = listener.local_addr().map_err(|source| BindError {
            what: "the issuer's listener",
            address: config.listen.address,
            source,
        })?;
        if tls.is_none() && !local.ip().is_loopback() {
            tracing::warn!(
                "the issuer listens on {local} without TLS: API keys cross the network in the clear unless something \
                 in front of it speaks TLS; set up [tls]"
            );
        }
        page::add(&process.live, &routes);
        let (places, shutdown) = (Places::default(), process.shutdown.clone());
        let server = Server { routes, settings: settings.clone(), places, shutdown };
        let ends = |second: u64| gauge!(catalogue::ISSUER_CERTIFICATE_ENDS).set(second as f64);
        let listening = watch::Sender::new(true).subscribe();
        let certificate =
            Renewed::new("certificate", tls, &process.readiness, &process.shutdown, ends, listening);
        let (signed, hsm) = (None, store.hsm());
        let parts =
            Reloading { config, signed, settings, accounts, keyring, recorder, health, certificate, hsm };
        let (commands, process) = (Commands::new(), process.clone());
        Ok(Self { local, listener, server, store, control, commands, process, parts, reloader: None })
    }

    /// Reloads the configuration from `file` on SIGHUP. `signed` is the certificate, if it is not the file's.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>, signed: Option<TlsConfig>) -> Self {
        self.parts.signed = signed;
        self.reloader = Some(Reloader::new(file, &self.process.readiness, &self.process.shutdown));
        self
    }

    /// Returns the address it listens on, with the real port if the configuration has port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the URL of the directory, by the address it listens on.
    #[must_use]
    pub fn directory_url(&self) -> String {
        let scheme = if self.parts.certificate.current().is_some() { "https" } else { "http" };
        format!("{scheme}://{}{DIRECTORY_PATH}", self.local)
    }

    /// Serves until it has drained or the process is *stopped*. The future is tracked work of the shutdown of `process`,
    /// so waiting for the drain waits for the last answer and for the quota counts to be on disk.
    pub fn run(self) -> BoxFuture<'static, ()> {
        let tracker = self.process.shutdown.tracker().clone();
        Box::pin(tracker.track_future(self.serve()))
    }

    async fn serve(self) {
        let Self { local, listener, server, store, control, process, mut parts, reloader, .. } = self;
        let (commands, commanded) = self.commands;
        let (accounts, keyring, recorder) =
            (parts.accounts.clone(), parts.keyring.clone(), parts.recorder.clone());
        let (health, hsm, shutdown) = (parts.health.clone(), parts.hsm.clone(), process.shutdown);
        tracing::info!("the issuer listens on {local}");
        health.started();
        parts.certificate.start();
        if let Some(reloader) = reloader {
            tokio::spawn(parts.run(reloader, shutdown.clone()));
        }
        tokio::select! {
            () = server.accept(listener) => {}
            () = shutdown.stopped() => {}
            () = keyring.run(store, commanded, &health) => {}
            () = accounts.clone().keep_saving(&health, &recorder) => {}
            () = control.serve(&accounts, &commands) => {}
            () = health.watch_overload(&recorder) => {}
            () = keyring.watch_hsm(hsm.clone(), &health) => {}
        }
        if let Some(hsm) = hsm {
            let _ = tokio::task::spawn_blocking(move || hsm.close()).await; // the runtime may be shutting down
        }
        accounts.save(&health).await;
    }
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Issuer({})", self.local)
    }
}

/// Checks what a start with this configuration would reject: reads certificates, keys and counts, but opens no
/// socket, takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], whose message states what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    check_without_keys(config)?;
    keys::inspect(&config.keys)?;
    match config.accounts.database {
        None => Ok(accounts::store::inspect(&config.keys.directory)?),
        Some(_) => Ok(()), // `doctor` connects
    }
}

/// Returns warnings about the environment of an issuer with this configuration that do not prevent a start, a sentence each:
/// those about the HSM.
#[must_use]
pub fn remarks(config: &Config) -> Vec<String> {
    keys::in_hsm::remarks(&config.keys)
}

/// Opens the state on disk, and reads keys and accounts.
fn open_state(config: &Config) -> Result<(KeyStore, Arc<Keyring>, Arc<Accounts>), StartError> {
    let (schedule, now) = (config.keys.schedule()?, UnixSeconds::now());
    let mut store = KeyStore::of(
        keys::open_directory(&config.keys.directory).map_err(KeysError::from)?,
        AtRest::of(&config.keys)?,
        config.server()?,
    )?;
    store.encrypt()?;
    let accounts = accounts::control::open_store(config, store.directory(), store.api_key_secret()?)?;
    let accounts = Arc::new(Accounts::open(Configured::of(config), accounts)?);
    if let Some(hsm) = store.hsm() {
        hsm.start();
    }
    match store.rotate(&schedule, now) {
        // The directory is served without the HSM, too; `Keyring::run` tries again.
        Err(error) if error.is_of_hsm() => tracing::error!("a token key cannot be made: {error}"),
        rotated => rotated?,
    }
    let keyring = Keyring::new(&store, schedule, Imprint::of(config), now);
    Ok((store, Arc::new(keyring), accounts))
}
