//! Applies a reloaded configuration while the issuer serves: everything but [`FIXED`]. A request in progress ends with the
//! settings that it began with.

use crate::StartError;
use crate::accounts::{Accounts, Authorizer, Configured, http_client};
use crate::config::{Config, Limits};
use crate::directory::Imprint;
use crate::health::{Fault, Health};
use crate::hsm::Hsm;
use crate::keyring::Keyring;
use crate::openapi::openapi;
use crate::recorder::Recorder;
use crate::representation::Representation;
use crate::signing::SigningPool;
use arc_swap::ArcSwap;
use postern_config::{Fixed, differ};
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{ListenerTls, Renewed, ServerTls, TlsConfig, keep_signed};
use postern_telemetry::log;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

const OTHER_SOCKETS: &str = "the sockets are bound at the start";

/// The keys that need a restart.
pub const FIXED: [Fixed; 6] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "keys.directory", why: "it holds the keys and accounts" },
    Fixed { key: "accounts", why: "the database is opened at the start" },
    Fixed { key: "keys.passphrase_file", why: "key files are encrypted at the start" },
    Fixed { key: "keys.pkcs11", why: "the module is loaded at the start" },
];

/// The settings that may change between two requests. Reading takes no lock.
pub(crate) type Settings = Arc<ArcSwap<Present>>;

#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) limits: Limits,
    /// Maximum number of open connections: the configured one, or fewer if there are not enough file descriptors.
    pub(crate) connections: usize,
    descriptors: Descriptors,
    pub(crate) directory_max_age: Duration,
    /// Paths of token requests: the directory's, and those that it has named since the start, for cached copies of it.
    request_paths: Vec<String>,
    /// The API description, which contains the directory's path.
    pub(crate) description: Representation,
    /// The signing pool. A replaced pool signs what waits in it.
    pub(crate) pool: Arc<SigningPool>,
    /// Networks whose connections begin with a PROXY header.
    pub(crate) balancers: Balancers,
    /// `true` if clients may use HTTP/2.
    pub(crate) http2: bool,
    pub(crate) tls: Option<ListenerTls>,
}

/// Creates the settings of a start.
pub(crate) fn settings(
    config: &Config,
    descriptors: Descriptors,
    recorder: &Arc<Recorder>,
    tls: Option<&ServerTls>,
) -> Result<Settings, StartError> {
    let pool = pool(config, recorder)?;
    let mut present = Present::of(config, descriptors, pool, Vec::new())?;
    present.tls = tls.map(|tls| ListenerTls::new(tls, present.http2));
    present.pool.show_places();
    Ok(Arc::new(ArcSwap::from_pointee(present)))
}

impl Present {
    pub(crate) fn takes_requests_at(&self, path: &str) -> bool {
        self.request_paths.iter().any(|known| known == path)
    }

    /// Creates the settings of a configuration, except TLS. `request_paths` are those before it.
    fn of(
        config: &Config,
        descriptors: Descriptors,
        pool: Arc<SigningPool>,
        mut request_paths: Vec<String>,
    ) -> Result<Self, StartError> {
        let Config { limits, listen, directory, .. } = config;
        let path = directory.path()?;
        let description = openapi(&directory.issuer_request_uri, &path);
        if !request_paths.contains(&path) {
            request_paths.push(path);
        }
        Ok(Self {
            limits: limits.clone(),
            connections: descriptors.connections("[limits] connections", limits.connections.get(), 1),
            descriptors,
            directory_max_age: directory.max_age.get(),
            request_paths,
            description: Representation::of(description.into_bytes()),
            pool,
            balancers: listen.proxy_protocol.clone(),
            http2: listen.http2,
            tls: None,
        })
    }
}

fn pool(config: &Config, recorder: &Arc<Recorder>) -> Result<Arc<SigningPool>, StartError> {
    let pool = SigningPool::new(config.signing.threads, config.signing.queue, recorder.clone());
    pool.map(Arc::new).map_err(StartError::Threads)
}

/// Checks the configuration as `check` does, except for the files that a running issuer has open.
pub(crate) fn check_without_keys(config: &Config) -> Result<(), StartError> {
    config.check()?;
    config.tls.as_ref().map(TlsConfig::load).transpose()?;
    config.authorizer.as_ref().map(http_client).transpose()?;
    Ok(())
}

pub(crate) fn authorizer(
    config: &Config,
    health: &Arc<Health>,
    recorder: &Arc<Recorder>,
) -> Result<Option<Authorizer>, StartError> {
    let open = |config| Authorizer::new(config, health.clone(), recorder.clone());
    Ok(config.authorizer.as_ref().map(open).transpose()?)
}

/// The parts that a reload changes.
pub(crate) struct Reloading {
    /// The configuration in force.
    pub(crate) config: Config,
    /// The certificate, if it is not the file's.
    pub(crate) signed: Option<TlsConfig>,
    pub(crate) settings: Settings,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) health: Arc<Health>,
    pub(crate) certificate: Renewed,
    pub(crate) hsm: Option<Hsm>,
}

impl Reloading {
    /// Reloads on each request, until the process is stopped.
    pub(crate) async fn run(mut self, mut reloader: Reloader<Config>, shutdown: Shutdown) {
        let reloading = async {
            loop {
                reloader.requested().await;
                if self.hsm.as_ref().is_some_and(Hsm::retry) {
                    tracing::warn!(
                        "the PIN file still has the PIN that the HSM refused, which is not tried again"
                    );
                }
                // Reading blocks on files.
                let reading = spawn_blocking(move || {
                    let reading = reloader.read(&FIXED, check_without_keys);
                    (reloader, reading)
                });
                let Ok((back, reading)) = reading.await else { return }; // the runtime is shutting down
                reloader = back;
                let Some(reading) = reading else {
                    self.accounts.forget_answers();
                    continue;
                };
                match self.apply(reading.config.clone(), &shutdown).await {
                    Ok(()) => reloader.applied(reading),
                    Err(error) => reloader.refused(&error.to_string()),
                }
            }
        };
        shutdown.until_stopped(reloading).await;
    }

    /// Applies a configuration. Steps that can fail come first, so that a failure changes nothing.
    async fn apply(&mut self, mut new: Config, shutdown: &Shutdown) -> Result<(), StartError> {
        keep_signed(&mut new.tls, self.signed.as_ref())?;
        let (old, schedule) = (&self.config, new.keys.schedule()?);
        let before = self.settings.load_full();
        let tls = differ(&old.tls, &new.tls).then(|| self.certificate.open(new.tls.as_ref())).transpose()?;
        let pool = match differ(&old.signing, &new.signing) {
            true => pool(&new, &self.recorder)?,
            false => before.pool.clone(),
        };
        let mut present = Present::of(&new, before.descriptors, pool, before.request_paths.clone())?;
        let authorizer = authorizer(&new, &self.health, &self.recorder)?;
        let (configured, accounts) = (Arc::new(Configured::of(&new)), self.accounts.clone());
        let writing = configured.clone();
        let written = spawn_blocking(move || accounts.take_up_authorizer(&writing));
        written.await.map_err(|_| StartError::Interrupted)??;
        self.accounts.set_authorizer(authorizer);
        self.health.clear(Fault::Authorizer); // a fault of the previous authorizer
        if let Some(tls) = tls {
            self.certificate.replace(tls);
        }
        present.tls = self.certificate.current().map(|tls| ListenerTls::new(tls, present.http2));
        let requires = new.listen.requires_certificates();
        self.certificate.current().iter().for_each(|tls| tls.require_client_certificates(requires));
        present.pool.show_places();
        self.settings.store(Arc::new(present));
        self.accounts.replace(configured);
        self.keyring.reschedule(schedule, Imprint::of(&new));
        log::set_format(new.log.format);
        shutdown.set_deadline(new.drain.deadline.get());
        self.config = new;
        Ok(())
    }
}
