//! What a reload of the configuration changes while the issuer serves: everything but [`FIXED`]. A request under way ends with
//! what it began with.

use crate::accounts::{Accounts, Configured};
use crate::config::{Config, Limits};
use crate::directory::Imprint;
use crate::health::{Fault, Health};
use crate::keyring::Keyring;
use crate::openapi::openapi;
use crate::recorder::Recorder;
use crate::representation::Representation;
use crate::signing::SigningPool;
use crate::{StartError, authorizer, check_without_keys};
use arc_swap::{ArcSwap, Guard};
use postern_config::{Fixed, differ};
use postern_daemon::descriptors::Descriptors;
use postern_daemon::drain::Shutdown;
use postern_daemon::proxy_protocol::Balancers;
use postern_daemon::reload::Reloader;
use postern_daemon::tls::{ListenerTls, Renewed, ServerTls, TlsConfig, keep_signed};
use postern_pkcs11::Hsm;
use postern_telemetry::log;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

const OTHER_SOCKETS: &str = "the sockets are bound at the start";

/// The keys that wait for a restart.
pub const FIXED: [Fixed; 7] = [
    Fixed { key: "listen.address", why: OTHER_SOCKETS },
    Fixed { key: "listen.admin", why: OTHER_SOCKETS },
    Fixed { key: "keys.directory", why: "it holds the keys and accounts" },
    Fixed { key: "group.follow", why: "following begins at the start" },
    Fixed { key: "group.name", why: "metrics have it from the start" },
    Fixed { key: "keys.passphrase_file", why: "key files are encrypted at the start" },
    Fixed { key: "keys.pkcs11", why: "the module is loaded at the start" },
];

/// The values that may change between two requests. Reading them takes no lock.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    present: Arc<ArcSwap<Present>>,
    descriptors: Descriptors,
}

#[derive(Clone, Debug)]
pub(crate) struct Present {
    pub(crate) limits: Limits,
    /// The most open connections: those of the limits, if there are descriptors for them.
    pub(crate) connections: usize,
    pub(crate) directory_max_age: Duration,
    /// Where tokens are requested: the directory's path, and those that it named since the start, for copies of it last.
    request_paths: Vec<String>,
    /// The API description, which has the directory's path.
    pub(crate) description: Arc<Representation>,
    /// A pool that was replaced signs what waits in it.
    pub(crate) pool: Arc<SigningPool>,
    /// Whose connections begin with a PROXY header.
    pub(crate) balancers: Balancers,
    /// Whether clients may speak HTTP/2.
    pub(crate) http2: bool,
    pub(crate) tls: Option<ListenerTls>,
}

impl Settings {
    pub(crate) fn of(
        config: &Config,
        descriptors: Descriptors,
        recorder: &Arc<Recorder>,
        tls: Option<&ServerTls>,
    ) -> Result<Self, StartError> {
        let mut present = Present {
            limits: config.limits.clone(),
            connections: 0,
            directory_max_age: Duration::ZERO,
            request_paths: Vec::new(),
            description: Arc::new(Representation::of(Vec::new())),
            pool: Arc::new(pool(config, recorder)?),
            balancers: Balancers::default(),
            http2: config.listen.http2,
            tls: tls.map(|tls| ListenerTls::new(tls, config.listen.http2)),
        };
        present.take_up(config, descriptors)?;
        Ok(Self { present: Arc::new(ArcSwap::from_pointee(present)), descriptors })
    }

    pub(crate) fn load(&self) -> Guard<Arc<Present>> {
        self.present.load()
    }

    /// To be held for longer than a moment.
    pub(crate) fn load_full(&self) -> Arc<Present> {
        self.present.load_full()
    }
}

impl Present {
    pub(crate) fn takes_requests_at(&self, path: &str) -> bool {
        self.request_paths.iter().any(|known| known == path)
    }

    /// Takes up what is only read.
    fn take_up(&mut self, config: &Config, descriptors: Descriptors) -> Result<(), StartError> {
        let path = config.directory.path()?;
        if !self.takes_requests_at(&path) {
            self.request_paths.push(path);
        }
        self.description = Arc::new(Representation::of(openapi(config)?.into_bytes()));
        self.limits = config.limits.clone();
        self.connections =
            descriptors.connections("[limits] connections", config.limits.connections.get(), 1);
        self.directory_max_age = config.directory.max_age();
        self.balancers = config.listen.proxy_protocol.clone();
        Ok(())
    }
}

fn pool(config: &Config, recorder: &Arc<Recorder>) -> Result<SigningPool, StartError> {
    SigningPool::new(config.signing.threads, config.signing.queue, recorder.clone())
        .map_err(StartError::Threads)
}

/// What a reload reaches.
pub(crate) struct Reloading {
    /// What is in force.
    pub(crate) config: Config,
    /// The certificate, where it is not the file's.
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
    /// Reloads on each request, until the stop.
    pub(crate) async fn run(mut self, mut reloader: Reloader<Config>, shutdown: Shutdown) {
        let reloading = async {
            loop {
                reloader.requested().await;
                if self.hsm.as_ref().is_some_and(Hsm::retry) {
                    tracing::warn!(
                        "the PIN file still has the PIN that the HSM refused, which is not tried again"
                    );
                }
                // It reads files.
                let reading = spawn_blocking(move || {
                    let reading = reloader.read(&FIXED, check_without_keys);
                    (reloader, reading)
                });
                let Ok((back, reading)) = reading.await else { return }; // the runtime is shutting down
                reloader = back;
                self.accounts.look_now();
                self.keyring.look_now();
                let Some(reading) = reading else {
                    self.accounts.forget_answers();
                    continue;
                };
                match self.apply(reading.config.clone(), &shutdown) {
                    Ok(()) => reloader.applied(reading),
                    Err(error) => reloader.refused(&error.to_string()),
                }
            }
        };
        shutdown.until_stopped(reloading).await;
    }

    /// First what can fail: then nothing has changed.
    fn apply(&mut self, mut new: Config, shutdown: &Shutdown) -> Result<(), StartError> {
        keep_signed(&mut new.tls, self.signed.as_ref())?;
        let (old, schedule) = (&self.config, new.keys.schedule()?);
        let mut present = Present::clone(&self.settings.load());
        let tls = differ(&old.tls, &new.tls).then(|| self.certificate.open(new.tls.as_ref())).transpose()?;
        present.take_up(&new, self.settings.descriptors)?;
        if differ(&old.signing, &new.signing) {
            present.pool = Arc::new(pool(&new, &self.recorder)?);
        }
        let authorizer = authorizer(&new, &self.health, &self.recorder)?;
        let configured = Configured::of(&new);
        self.accounts.take_up_share(&configured)?;
        self.accounts.take_up_authorizer(authorizer)?;
        self.health.clear(Fault::Authorizer); // what was wrong with the one before
        if let Some(tls) = tls {
            self.certificate.replace(tls);
        }
        present.http2 = new.listen.http2;
        present.tls = self.certificate.current().map(|tls| ListenerTls::new(tls, present.http2));
        let requires = new.listen.requires_certificates();
        self.certificate.current().iter().for_each(|tls| tls.require_client_certificates(requires));
        self.settings.present.store(Arc::new(present));
        self.accounts.replace(configured, &new.usage);
        self.keyring.reschedule(schedule, Imprint::of(&new));
        log::set_format(new.log.format);
        shutdown.set_deadline(new.drain.deadline.get());
        self.config = new;
        Ok(())
    }
}
