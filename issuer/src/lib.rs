//! The token issuer: it publishes its keys and answers blinded token requests of types 2, 5 and 1, alone (RFC 9578, sections 4
//! to 6) and in batches (draft-ietf-privacypass-batched-tokens-09).
//!
//! The issuer learns only that an account requested a token. It never sees the token or its use, and it logs no
//! accounts, addresses or bytes of requests.
//!
//! `issue` handles a token request; `answer` is the one table of statuses. `rotation` computes the lifetimes of keys,
//! `keys` keeps their files, and `keyring` is what requests use of both. `accounts` holds who may request tokens,
//! `quota` how many, `share` which part of that this issuer gives, `control` takes operators' commands, `signing` is the CPU pool, and in its `fair_queue` accounts take turns. `recorder` has the counts,
//! `page` shows them, and `reload` applies SIGHUP. `openapi` describes all that is served, for those who write clients, and
//! `representation` is what is served to everyone. There is no CORS: web pages must not reach an issuer that may be open to
//! loopback.

mod accounts;
mod answer;
mod burst;
pub mod catalogue;
pub mod config;
pub mod control;
mod directory;
mod examine;
mod health;
mod issue;
mod join;
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
mod share;
mod signing;
mod start_error;

pub use accounts::AccountsError;
pub use burst::Burst;
pub use config::Config;
pub use examine::{certificates, examine};
pub use join::JoinConfig;
pub use keys::KeysError;
pub use quota::Quota;
pub use reload::FIXED;
pub use share::Share;
pub use start_error::StartError;

use accounts::{Accounts, Authorizer, Configured};
use config::AuthorizerConfig;
use control::Control;
use directory::Imprint;
use health::Health;
use issue::Issuance;
use keyring::{Command, Commands, Keyring};
use keys::KeyStore;
use keys::at_rest::AtRest;
use metrics::gauge;
use postern_admin::ProcessContext;
use postern_config::ConfigFile;
use postern_daemon::BoxFuture;
use postern_daemon::listen::{self, BindError};
use postern_daemon::places::Places;
use postern_daemon::rates::Rates;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{Renewed, TlsConfig};
use postern_token::{DIRECTORY_PATH, UnixSeconds};
use recorder::Recorder;
use reload::{Reloading, Settings};
use server::{Routes, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// An issuer that listens, and serves once it runs.
pub struct Issuer {
    local: SocketAddr,
    listener: TcpListener,
    server: Server,
    store: KeyStore,
    keyring: Arc<Keyring>,
    accounts: Arc<Accounts>,
    control: Control,
    commands: (Commands, mpsc::Receiver<Command>),
    health: Arc<Health>,
    process: ProcessContext,
    certificate: Renewed,
    /// What a reload is compared with.
    config: Config,
    signed: Option<TlsConfig>,
    reloader: Option<Reloader<Config>>,
}

impl Issuer {
    /// Checks the configuration, loads the keys (or makes the first, some hundred milliseconds of CPU off the
    /// runtime), and opens the socket. Nothing is served before [`Issuer::run`].
    ///
    /// # Errors
    /// A sentence for the operator, and with [`StartError::exit_code`] what to exit with.
    pub fn bind(config: Config, process: &ProcessContext) -> BoxFuture<'_, Result<Self, StartError>> {
        Box::pin(Self::open(config, process))
    }

    async fn open(config: Config, process: &ProcessContext) -> Result<Self, StartError> {
        check_values(&config)?;
        let health = Arc::new(Health::new(process.readiness.gate("issuer")));
        let tls = config.tls.as_ref().map(TlsConfig::open).transpose()?;
        tls.iter().for_each(|tls| tls.require_client_certificates(config.listen.requires_certificates()));
        let state = tokio::task::spawn_blocking({
            let config = config.clone();
            move || State::open(&config)
        });
        let State { store, keyring, accounts } = state.await.map_err(|_| StartError::Interrupted)??;
        let control = Control::bind(store.directory())?;
        let recorder = Arc::new(Recorder::new());
        accounts.take_up_authorizer(authorizer(&config, &health, &recorder)?)?;
        let settings = Settings::of(&config, process.descriptors, &recorder, tls.as_ref())?;
        let issuance = Issuance {
            accounts: accounts.clone(),
            keyring: keyring.clone(),
            settings: settings.clone(),
            recorder: recorder.clone(),
        };
        let routes = Arc::new(Routes {
            keyring: keyring.clone(),
            issuance,
            settings: settings.clone(),
            recorder,
            rates: Rates::default(),
        });
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
        let server = Server { routes, settings, places, shutdown };
        let ends = |second: u64| gauge!(catalogue::ISSUER_CERTIFICATE_ENDS).set(second as f64);
        let listening = watch::Sender::new(true).subscribe();
        let certificate =
            Renewed::new("certificate", tls, &process.readiness, &process.shutdown, ends, listening);
        let process = process.clone();
        Ok(Self {
            local,
            listener,
            server,
            certificate,
            store,
            keyring,
            accounts,
            control,
            commands: Commands::new(),
            health,
            process,
            config,
            signed: None,
            reloader: None,
        })
    }

    /// Reads `file`, which the configuration came from, again on SIGHUP. `signed` is the certificate, where it is not the file's.
    #[must_use]
    pub fn reloading(mut self, file: ConfigFile<Config>, signed: Option<TlsConfig>) -> Self {
        self.signed = signed;
        self.reloader = Some(Reloader::new(file, &self.process.readiness, &self.process.shutdown));
        self
    }

    /// The address it listens on, with the real port when the configuration has port 0.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The URL of the directory, by the address it listens on.
    #[must_use]
    pub fn directory_url(&self) -> String {
        let scheme = if self.certificate.current().is_some() { "https" } else { "http" };
        format!("{scheme}://{}{DIRECTORY_PATH}", self.local)
    }

    /// Serves until it has drained or the process is *stopped*. It counts as tracked work of the shutdown of `process`,
    /// so waiting for the drain waits for the last answer and for the quota counts to be on disk.
    pub fn run(self) -> BoxFuture<'static, ()> {
        let tracker = self.process.shutdown.tracker().clone();
        Box::pin(tracker.track_future(self.serve()))
    }

    async fn serve(self) {
        let Self { local, listener, server, store, keyring, accounts, control, health, process, .. } = self;
        let (mut certificate, config, signed) = (self.certificate, self.config, self.signed);
        let (commands, commanded) = self.commands;
        let shutdown = process.shutdown;
        tracing::info!("the issuer listens on {local}");
        accounts.report_awaited(&health);
        health.started();
        certificate.start();
        let hsm = store.hsm();
        if let Some(reloader) = self.reloader {
            let (accounts, keyring) = (accounts.clone(), keyring.clone());
            let (settings, recorder) = (server.settings.clone(), server.routes.recorder.clone());
            let (health, hsm) = (health.clone(), hsm.clone());
            let reached =
                Reloading { config, signed, settings, accounts, keyring, recorder, health, certificate, hsm };
            tokio::spawn(reached.run(reloader, shutdown.clone()));
        }
        let recorder = server.routes.recorder.clone();
        tokio::select! {
            () = server.serve(listener) => {}
            () = shutdown.stopped() => {}
            () = keyring.run(store, commanded, &health) => {}
            () = accounts.clone().keep_saving(&health, &recorder) => {}
            () = accounts.follow(&health) => {}
            () = control.serve(&accounts, &commands) => {}
            () = health.watch_overload(&recorder) => {}
            () = keys::in_hsm::watch(hsm.clone(), &keyring, &health) => {}
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

/// Finds what a start with this configuration would refuse: it reads certificates, keys and counts, and opens no
/// socket, takes no lock and writes nothing.
///
/// # Errors
/// [`StartError`], whose message states what to change.
pub fn check(config: &Config) -> Result<(), StartError> {
    check_without_keys(config)?;
    keys::inspect(&config.keys)?;
    Ok(accounts::inspect(&config.keys.directory)?)
}

/// What is odd about the environment of an issuer with this configuration, beside what [`check`] refuses: the HSM, of which a start does
/// not depend. A sentence for each thing.
#[must_use]
pub fn remarks(config: &Config) -> Vec<String> {
    keys::in_hsm::remarks(&config.keys)
}

/// The same without what the issuer that runs has open.
fn check_without_keys(config: &Config) -> Result<(), StartError> {
    check_values(config)?;
    config.tls.as_ref().map(TlsConfig::load).transpose()?;
    config.authorizer.as_ref().map(AuthorizerConfig::client).transpose()?;
    Ok(())
}

fn authorizer(
    config: &Config,
    health: &Arc<Health>,
    recorder: &Arc<Recorder>,
) -> Result<Option<Authorizer>, StartError> {
    let open = |config| Authorizer::new(config, health.clone(), recorder.clone());
    Ok(config.authorizer.as_ref().map(open).transpose()?)
}

fn check_values(config: &Config) -> Result<(), StartError> {
    config.check()?;
    accounts::check_tiers(&config.tiers)
}

/// What is on disk, and its reading.
struct State {
    store: KeyStore,
    keyring: Arc<Keyring>,
    accounts: Arc<Accounts>,
}

impl State {
    fn open(config: &Config) -> Result<Self, StartError> {
        let (schedule, now) = (config.keys.schedule()?, UnixSeconds::now());
        let mut store = KeyStore::open(&config.keys.directory, AtRest::of(&config.keys)?)?;
        store.encrypt()?;
        store.follow(config.follows());
        let accounts = Arc::new(Accounts::open(Configured::of(config), store.directory(), &config.usage)?);
        if let Some(hsm) = store.hsm() {
            hsm.start();
        }
        match store.rotate(&schedule, now) {
            Err(KeysError::NotCopied { .. }) => {} // a follower waits for its copies, and says so
            // The directory is served without the HSM, too; `Keyring::run` tries again.
            Err(error) if error.is_of_hsm() => tracing::error!("a token key cannot be made: {error}"),
            rotated => rotated?,
        }
        let keyring = Keyring::new(&store, schedule, Imprint::of(config), now);
        Ok(Self { store, keyring: Arc::new(keyring), accounts })
    }
}
