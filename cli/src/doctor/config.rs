//! Performs the checks that a daemon performs before it listens. The keys of a file determine its daemon.

use crate::daemon::environment;
use crate::failure::Failure;
use crate::running::other_process;
use postern_config::{ConfigError, Environment, Fit};
use postern_daemon::examination::{Finding, exposed_api_key, listeners, lock_holder};
use postern_daemon::files::LOCK_FILE;
use postern_gateway::config::StoreKind;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

struct Daemon {
    /// Subcommand: `postern NAME --config FILE`.
    command: &'static str,
    /// Name with its article.
    name: &'static str,
    fit: fn(&Path) -> Result<Fit, ConfigError>,
    load: fn(&Path) -> Result<Read, ConfigError>,
}

/// A configuration, and the warnings about its environment.
type Read = (Loaded, Vec<String>);

static DAEMONS: [Daemon; 3] = [
    Daemon {
        command: "gateway",
        name: "a gateway",
        fit: postern_config::fit::<postern_gateway::Config>,
        load: |path| load(path, Loaded::Gateway),
    },
    Daemon {
        command: "issuer",
        name: "an issuer",
        fit: postern_config::fit::<postern_issuer::Config>,
        load: |path| load(path, Loaded::Issuer),
    },
    Daemon {
        command: "client",
        name: "an agent",
        fit: postern_config::fit::<postern_client::Config>,
        load: |path| load(path, Loaded::Client),
    },
];

#[derive(Clone)]
pub(crate) enum Loaded {
    Gateway(Box<postern_gateway::Config>),
    Issuer(Box<postern_issuer::Config>),
    Client(Box<postern_client::Config>),
}

impl Loaded {
    /// Returns the listeners with their keys, the admin listener last.
    pub(super) fn listeners(&self) -> [(&'static str, SocketAddr); 2] {
        let (address, admin) = match self {
            Self::Gateway(config) => (config.listen.address, config.listen.admin),
            Self::Issuer(config) => (config.listen.address, config.listen.admin),
            Self::Client(config) => (config.listen.address, config.listen.admin),
        };
        [("listen.address", address), ("listen.admin", admin)]
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.listeners()[1].1
    }

    /// Returns a sentence about a process that has the daemon's files, for a daemon that does not answer at its admin address.
    pub(crate) fn held(&self) -> Option<String> {
        let (key, file) = self.locked().filter(|_| self.admin().port() != 0)?;
        let process = lock_holder(&file)?;
        let (file, admin) = (file.display(), self.admin());
        Some(format!("process {process} has {file} ({key}), and nothing answers at {admin} (listen.admin)"))
    }

    /// Returns a sentence about a process that answers at the daemon's admin address and is another one: it does not have the
    /// daemon's files or, where it has none, does not listen at the daemon's address although it `is_ready`.
    pub(crate) fn other_answers(&self, is_ready: bool) -> Option<String> {
        let [(key, address), (_, admin)] = self.listeners();
        if let Some((key, file)) = self.locked() {
            return other_process(admin, key, &file);
        }
        let here = listeners(admin);
        let other = here.first().filter(|_| is_ready && address.port() != 0)?;
        let listens = listeners(address).iter().any(|process| here.contains(process));
        (!listens).then(|| {
            format!(
                "process {other} answers at {admin} (listen.admin), and does not listen at {address} ({key})"
            )
        })
    }

    /// Returns the file that the daemon locks while it runs, and the key that names it; `None` for a gateway without files.
    fn locked(&self) -> Option<(&'static str, PathBuf)> {
        match self {
            Self::Gateway(config) if config.store.kind == StoreKind::Embedded => {
                Some(("store.path", config.store.path.join(LOCK_FILE)))
            }
            Self::Gateway(_) => None,
            Self::Issuer(config) => Some(("keys.directory", config.keys.directory.join(LOCK_FILE))),
            Self::Client(config) => Some(("wallet.path", config.wallet.path.clone())),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Gateway(config) => Ok(postern_gateway::check(config)?),
            Self::Issuer(config) => Ok(postern_issuer::check(config)?),
            Self::Client(config) => Ok(postern_client::check(config)?),
        }
    }

    /// Examines the resources that the daemon requires of the machine and the network, without starting it.
    pub(super) async fn needs(&self) -> Vec<Finding> {
        match self {
            Self::Gateway(config) => postern_gateway::examine(config).await,
            Self::Issuer(config) => postern_issuer::examine(config).await,
            Self::Client(config) => postern_client::examine(config).await,
        }
    }

    fn certificates(&self) -> Vec<Finding> {
        match self {
            Self::Gateway(config) => postern_gateway::certificates(config),
            Self::Issuer(config) => postern_issuer::certificates(config),
            Self::Client(config) => postern_client::certificates(config),
        }
    }

    fn remarks(&self) -> Vec<String> {
        match self {
            Self::Gateway(config) => config.egress.remarks(),
            Self::Issuer(config) => postern_issuer::remarks(config),
            Self::Client(_) => Vec::new(),
        }
    }
}

/// Returns the daemon for which the file has the fewest unknown keys and, among equals, the most known ones. Fails on a tie.
fn daemon_of(path: &Path) -> Result<&'static Daemon, Failure> {
    let mut fits = Vec::new();
    for daemon in &DAEMONS {
        fits.push(((daemon.fit)(path)?, daemon));
    }
    fits.sort_by_key(|(fit, _)| (fit.unknown, Reverse(fit.known)));
    match fits.as_slice() {
        [(best, daemon), (next, _), ..] if best != next => Ok(*daemon),
        _ => Err(Failure::configuration(format_args!(
            "{}: it does not show for which daemon it is; a gateway's file has the sections [issuer] and \
             [challenge], an issuer's has [keys], and an agent's has [gateway] and [wallet]",
            path.display()
        ))),
    }
}

/// Returns the subcommand for this file and its configuration, with the current environment variables applied.
pub(crate) fn daemon(path: &Path) -> Result<(&'static str, Loaded), Failure> {
    let daemon = daemon_of(path)?;
    let (config, _) = (daemon.load)(path)?;
    Ok((daemon.command, config))
}

/// Loads a gateway's configuration and checks that a gateway would start with it.
pub(super) fn gateway(path: &Path) -> Result<postern_gateway::Config, Failure> {
    let (config, _) = postern_config::open::<postern_gateway::Config>(path, environment())?;
    postern_gateway::check(&config)?;
    Ok(config)
}

/// Loads the file as its daemon does and performs the daemon's checks before it listens. Returns the daemon's name, with its article,
/// and the findings that need no network access: warnings that do not prevent startup, about the environment, egress rules or
/// an HSM; certificates that the daemon presents, and its API key.
pub(super) fn examine(path: &Path) -> Result<(&'static str, Loaded, Vec<Finding>), Failure> {
    let Daemon { name, load, .. } = *daemon_of(path)?;
    let refused = |failure: Failure| {
        let sentence = format!("{}: {name} would not start: {}", path.display(), failure.sentence);
        Failure { sentence, ..failure }
    };
    let (config, warnings) = load(path).map_err(|error| refused(error.into()))?;
    config.check().map_err(refused)?;
    let mut findings = vec![Finding::well("file", format!("{name} can be started with it"))];
    let warnings = warnings.into_iter().chain(config.remarks());
    findings.extend(warnings.map(|warning| Finding::look("file", warning)));
    findings.extend(config.certificates());
    if matches!(config, Loaded::Client(_)) && holds_api_key(path) {
        findings.extend(exposed_api_key(path));
    }
    Ok((name, config, findings))
}

/// `true` if the file itself holds an agent's API key, which may also come from the environment.
fn holds_api_key(path: &Path) -> bool {
    let alone = postern_config::open::<postern_client::Config>(path, Environment::default());
    alone.is_ok_and(|(config, _)| {
        let first = config.first_hop.as_ref().map(|hop| &hop.issuer);
        first.into_iter().chain([&config.issuer]).any(|issuer| issuer.api_key.is_some())
    })
}

fn load<T: DeserializeOwned + Serialize + JsonSchema>(
    path: &Path,
    loaded: fn(Box<T>) -> Loaded,
) -> Result<Read, ConfigError> {
    let (config, file) = postern_config::open::<T>(path, environment())?;
    Ok((loaded(Box::new(config)), file.warnings().to_vec()))
}
