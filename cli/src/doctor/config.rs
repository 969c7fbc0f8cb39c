//! Everything that a start with a configuration file does, short of listening. Which daemon the file is for follows from
//! its keys.

use crate::daemon::environment;
use crate::failure::Failure;
use postern_config::Fit;
use postern_daemon::examination::Finding;
use postern_gateway::config::StoreKind;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cmp::Reverse;
use std::net::SocketAddr;
use std::path::Path;

/// A daemon that reads a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gateway,
    Issuer,
    Client,
}

/// A file that a start would not refuse.
pub(super) struct Examined {
    /// The daemon that it is for, with its article.
    pub(super) name: &'static str,
    pub(super) config: Loaded,
    /// What is odd about the environment, egress rules or an HSM.
    warnings: Vec<String>,
    /// The certificates that the daemon shows.
    certificates: Vec<Finding>,
}

impl Examined {
    /// What the file shows, without a look at the network.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let can_start = Finding::well("file", format!("{} can be started with it", self.name));
        let warnings = self.warnings.iter().map(|warning| Finding::look("file", warning));
        let said = std::iter::once(can_start).chain(warnings);
        said.chain(self.certificates.iter().cloned()).collect()
    }
}

/// The configuration of a daemon.
#[derive(Clone)]
pub(super) enum Loaded {
    Gateway(Box<postern_gateway::Config>),
    Issuer(Box<postern_issuer::Config>),
    Client(Box<postern_client::Config>),
}

impl Loaded {
    /// Each with its key, the admin listener last.
    pub(super) fn listeners(&self) -> [(&'static str, SocketAddr); 2] {
        let (address, admin) = match self {
            Self::Gateway(config) => (config.listen.address, config.listen.admin),
            Self::Issuer(config) => (config.listen.address, config.listen.admin),
            Self::Client(config) => (config.listen.address, config.listen.admin),
        };
        [("listen.address", address), ("listen.admin", admin)]
    }

    /// What the daemon needs of the machine and of the network. Does not start it.
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

impl Kind {
    const ALL: [Self; 3] = [Self::Gateway, Self::Issuer, Self::Client];

    /// As on the command line: `postern NAME --config FILE`.
    pub(crate) const fn command(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Issuer => "issuer",
            Self::Client => "client",
        }
    }

    /// With its article.
    const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "a gateway",
            Self::Issuer => "an issuer",
            Self::Client => "an agent",
        }
    }

    fn fit(self, path: &Path) -> Result<Fit, Failure> {
        Ok(match self {
            Self::Gateway => postern_config::fit::<postern_gateway::Config>(path)?,
            Self::Issuer => postern_config::fit::<postern_issuer::Config>(path)?,
            Self::Client => postern_config::fit::<postern_client::Config>(path)?,
        })
    }

    /// The daemon that knows most of the file.
    fn of(path: &Path) -> Result<Self, Failure> {
        let mut fits = Vec::new();
        for kind in Self::ALL {
            fits.push((kind.fit(path)?, kind));
        }
        fits.sort_by_key(|(fit, _)| (fit.unknown, Reverse(fit.known)));
        match fits.as_slice() {
            [(best, kind), (next, _), ..] if best != next => Ok(*kind),
            _ => Err(Failure::configuration(format_args!(
                "{}: it does not show for which daemon it is; a gateway's file has the sections [issuer] and \
                 [challenge], an issuer's has [keys], and an agent's has [gateway] and [wallet]",
                path.display()
            ))),
        }
    }
}

/// The daemon of this file, and its admin address with the environment variables as they are now.
pub(crate) fn admin(path: &Path) -> Result<(Kind, SocketAddr), Failure> {
    let kind = Kind::of(path)?;
    let admin = match kind {
        Kind::Gateway => postern_config::open::<postern_gateway::Config>(path, environment())?.0.listen.admin,
        Kind::Issuer => postern_config::open::<postern_issuer::Config>(path, environment())?.0.listen.admin,
        Kind::Client => postern_config::open::<postern_client::Config>(path, environment())?.0.listen.admin,
    };
    Ok((kind, admin))
}

/// Whether a gateway's file names three replicas.
pub(crate) fn has_replicas(path: &Path) -> bool {
    let opened = postern_config::open::<postern_gateway::Config>(path, environment());
    opened.is_ok_and(|(config, _)| {
        config.store.kind == StoreKind::Memcached && !config.store.memcached.replicas.is_empty()
    })
}

/// The configuration of a gateway that would start with this file.
pub(super) fn gateway(path: &Path) -> Result<postern_gateway::Config, Failure> {
    let (config, _) = postern_config::open::<postern_gateway::Config>(path, environment())?;
    postern_gateway::check(&config)?;
    Ok(config)
}

/// Loads the file as its daemon does, and checks what the daemon checks before it listens.
pub(super) fn examine(path: &Path) -> Result<Examined, Failure> {
    let kind = Kind::of(path)?;
    let name = kind.name();
    let loaded = match kind {
        Kind::Gateway => load(path, postern_gateway::check, Loaded::Gateway),
        Kind::Issuer => load(path, postern_issuer::check, Loaded::Issuer),
        Kind::Client => load(path, postern_client::check, Loaded::Client),
    };
    let refused = |failure: Failure| {
        let sentence = format!("{}: {name} would not start: {}", path.display(), failure.sentence);
        Failure { sentence, ..failure }
    };
    let (config, mut warnings) = loaded.map_err(refused)?;
    warnings.extend(config.remarks());
    Ok(Examined { name, certificates: config.certificates(), config, warnings })
}

fn load<T, E>(
    path: &Path,
    check: impl Fn(&T) -> Result<(), E>,
    loaded: impl Fn(Box<T>) -> Loaded,
) -> Result<(Loaded, Vec<String>), Failure>
where
    T: DeserializeOwned + Serialize + JsonSchema,
    Failure: From<E>,
{
    let (config, file) = postern_config::open::<T>(path, environment())?;
    check(&config)?;
    Ok((loaded(Box::new(config)), file.warnings().to_vec()))
}
