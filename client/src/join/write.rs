//! Writes the configuration of an agent that joins, with the API key and the certificates in files beside its wallet, and
//! checks that the agent would get tokens.

use super::string::Join;
use crate::config::{Config, Listen};
use crate::hop::fetch_challenge::{ChallengeFetchError, fetch_challenge_from};
use crate::hop::gateway::{Gateway, GatewayUrlError};
use crate::mint::error::MintError;
use crate::mint::issuer::IssuerClient;
use crate::start::{StartError, check};
use postern_config::ConfigError;
use postern_daemon::files::{private_directory, write_private};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit for each gateway.
const PATIENCE: Duration = Duration::from_secs(15);

/// The place of a joining agent's files.
#[derive(Clone, Debug)]
pub struct JoinPlace {
    /// The configuration (mode 0600).
    pub config: PathBuf,
    /// The folder of API key, certificates and wallet, made where it is missing (mode 0700).
    pub data: PathBuf,
    /// Where programs reach the agent, and its admin listener.
    pub listen: Listen,
    /// Whether a configuration that is there is replaced.
    pub replaces: bool,
}

/// The reason why no configuration was written.
#[derive(Debug, thiserror::Error)]
pub enum JoinWriteError {
    /// There is one.
    #[error(
        "{} is there already and has been left as it is: choose another name with --config and --data, or replace it with \
         --force. Tokens in the wallet are kept either way", path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Every user may change what is in a folder.
    #[error(
        "every user of this machine may write in {} (mode {mode:o}), and so put another key, wallet or configuration there: run \
         chmod 700 on it, or choose another folder with --config and --data", path.display()
    )]
    Shared {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The system refused.
    #[error("cannot write {}: {source}; check the disk, and that this user may write there", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// What was written does not parse.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An agent would not start with it.
    #[error("an agent cannot start with this join string: {0}")]
    Start(#[from] StartError),
}

/// The reason why an agent would get no tokens.
#[derive(Debug, thiserror::Error)]
pub enum JoinCheckError {
    /// A gateway's address or certificates.
    #[error(transparent)]
    Url(#[from] GatewayUrlError),
    /// A gateway gives no challenge.
    #[error(transparent)]
    Challenge(#[from] ChallengeFetchError),
    /// A gateway does not answer.
    #[error("the gateway {0} did not answer within {PATIENCE:?}: it hangs, or the way to it does")]
    Silent(String),
    /// The issuer, or its keys.
    #[error(transparent)]
    Mint(#[from] MintError),
}

/// Writes the configuration, and returns it. It is written last, so that one that is there is complete.
///
/// # Errors
/// [`JoinWriteError`]; where the configuration is the trouble, the files beside it may have been written.
pub fn write_join(join: &Join, place: &JoinPlace) -> Result<Config, JoinWriteError> {
    // An agent may be started in any folder.
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|source| JoinWriteError::Io { path: path.into(), source })
    };
    let (path, data) = (absolute(&place.config)?, absolute(&place.data)?);
    let files = Files::under(&data, join);
    let all = [Some(&path), files.api_key.as_ref(), files.gateway_ca.as_ref(), files.issuer_ca.as_ref()];
    if let Some(there) = all.into_iter().flatten().find(|path| !place.replaces && path.exists()) {
        return Err(JoinWriteError::Exists { path: there.clone() });
    }
    for folder in [Some(data.as_path()), path.parent()].into_iter().flatten() {
        refuse_shared(folder)?;
    }
    let text = text(join, &place.listen, &path, &files);
    let config: Config = postern_config::parse(&path.display().to_string(), &text, [])?;
    config.check().map_err(StartError::from)?;
    let make = |directory: &Path| {
        private_directory()
            .create(directory)
            .map_err(|source| JoinWriteError::Io { path: directory.into(), source })
    };
    make(&data)?;
    path.parent().map_or(Ok(()), make)?;
    let put = |path: &PathBuf, text: &str| {
        write_private(path, text.as_bytes())
            .map_err(|source| JoinWriteError::Io { path: path.clone(), source })
    };
    let beside = [
        (&files.api_key, join.api_key.as_ref().map(|key| key.expose())),
        (&files.gateway_ca, join.gateway_ca.as_deref()),
        (&files.issuer_ca, join.issuer_ca.as_deref()),
    ];
    for (path, text) in beside {
        if let (Some(path), Some(text)) = (path, text) {
            put(path, &format!("{}\n", text.trim_end()))?;
        }
    }
    check(&config)?;
    put(&path, &text)?;
    Ok(config)
}

/// Refuses a folder in which every user may replace files.
#[cfg(unix)]
fn refuse_shared(folder: &Path) -> Result<(), JoinWriteError> {
    use std::os::unix::fs::MetadataExt;
    let mode = std::fs::metadata(folder).map_or(0, |metadata| metadata.mode() & 0o7777);
    let is_shared = mode & 0o002 != 0 && mode & 0o1000 == 0; // with the sticky bit each user has their own files
    if is_shared { Err(JoinWriteError::Shared { path: folder.to_owned(), mode }) } else { Ok(()) }
}

#[cfg(not(unix))]
fn refuse_shared(_: &Path) -> Result<(), JoinWriteError> {
    Ok(())
}

/// The files beside the configuration; absent if the join string has nothing for them.
struct Files {
    api_key: Option<PathBuf>,
    gateway_ca: Option<PathBuf>,
    issuer_ca: Option<PathBuf>,
    wallet: PathBuf,
}

impl Files {
    fn under(data: &Path, join: &Join) -> Self {
        Self {
            api_key: join.api_key.as_ref().map(|_| data.join("api-key")),
            gateway_ca: join.gateway_ca.as_ref().map(|_| data.join("gateway-ca.pem")),
            issuer_ca: join.issuer_ca.as_ref().map(|_| data.join("issuer-ca.pem")),
            wallet: data.join("wallet"),
        }
    }
}

/// Formats the configuration, with a comment on each value.
fn text(join: &Join, listen: &Listen, path: &Path, files: &Files) -> String {
    let file = |key: &str, about: &str, path: &Option<PathBuf>| {
        path.as_ref().map_or(String::new(), |path| format!("# {about}\n{key} = {}\n", quoted_path(path)))
    };
    let urls = |list: &[String]| match list {
        [one] => quoted(one),
        several => format!("[{}]", several.iter().map(|url| quoted(url)).collect::<Vec<_>>().join(", ")),
    };
    let url = urls(&join.gateways);
    let origin = join.origin.as_ref().map_or(String::new(), |origin| {
        format!(
            "# The name in the gateway's challenges: those for other names are ignored.\norigin = {}\n",
            quoted(origin)
        )
    });
    format!(
        "# An agent of Postern, written by `postern client join`. docs/reference/configuration.md has every key.
#
#     postern client --config {path}
#     postern client status --config {path}

[listen]
# Where programs connect: an HTTP and SOCKS5 proxy.
address = \"{address}\"
# The live page, /metrics, /readyz, and what `postern client status` reads.
admin = \"{admin}\"

[gateway]
# The proxy that opens tunnels, one token each. Of several the first that works is used.
url = {url}
{origin}{gateway_ca}
[issuer]
# The server that signs tokens without seeing them.
url = {issuer}
{api_key}{issuer_ca}
[wallet]
# Unspent tokens: money. Only this user can read the file.
path = {wallet}
# Minting begins below `low` tokens and ends at `high`.
low = 32
high = 128
",
        address = listen.address,
        admin = listen.admin,
        path = path.display().to_string().escape_debug(),
        gateway_ca = file("ca", "The certificates to trust for the gateway.", &files.gateway_ca),
        issuer = urls(&join.issuers),
        api_key = file("api_key_file", "The account's API key, which is sent to this issuer alone.", &files.api_key),
        issuer_ca = file("ca", "The certificates to trust for the issuer.", &files.issuer_ca),
        wallet = quoted_path(&files.wallet),
    )
}

/// Fetches the challenge of each gateway of `config`, and each issuer's key for it. Has each issuer sign one token, which
/// is given up: no other request shows whether the API key is accepted.
///
/// # Errors
/// The first thing that would keep the agent from minting.
pub async fn check_join(config: &Config) -> Result<(), JoinCheckError> {
    let hop = config.last_hop();
    let issuers = IssuerClient::all(hop.issuer)?;
    let mut is_tried = false;
    for url in hop.gateway.url.list() {
        let gateway = Arc::new(Gateway::new(url, hop.gateway)?);
        let fetching = timeout(PATIENCE, fetch_challenge_from(&gateway)).await;
        let challenge = fetching.map_err(|_| JoinCheckError::Silent(url.clone()))??;
        for issuer in &issuers {
            let key = issuer.key_for(&challenge).await?;
            if !is_tried {
                issuer.mint(&challenge.bytes, &key, 1, 0, |_| ControlFlow::Continue(())).await?;
            }
        }
        is_tried = true;
    }
    Ok(())
}

/// Quotes a TOML string. JSON's strings are TOML's, except for one control character that JSON does not escape.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}
