//! Writes the configuration of an agent that joins, with the API key and the certificates in files next to its wallet, and checks
//! that the agent would get tokens.

use super::string::Join;
use crate::config::{Config, Listen};
use crate::hop::connection::fetch_challenge_from;
use crate::hop::health::Outage;
use crate::mint::error::MintError;
use crate::settings::{HopSettings, StartError, check, settings};
use postern_daemon::exit;
use postern_daemon::files::{private_directory, write_private};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Time limit for each gateway.
const PATIENCE: Duration = Duration::from_secs(15);

/// The paths of a joining agent's files, and its listeners.
#[derive(Clone, Debug)]
pub struct JoinPlace {
    /// The configuration (mode 0600).
    pub config: PathBuf,
    /// The folder of API key, certificates and wallet, created if missing (mode 0700).
    pub data: PathBuf,
    /// The listeners for programs and administration.
    pub listen: Listen,
    /// `true` if an existing configuration is replaced.
    pub replaces: bool,
}

/// The reason why no configuration was written: what happened and what to do, and the command's exit code.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct JoinWriteError {
    sentence: String,
    /// One of [`postern_daemon::exit`].
    pub exit_code: u8,
}

impl JoinWriteError {
    fn usage(sentence: String) -> Self {
        Self { sentence, exit_code: exit::USAGE }
    }

    /// Returns the error of a join string with which no agent starts.
    fn start(error: impl Into<StartError>) -> Self {
        let sentence = format!("an agent cannot start with this join string: {}", error.into());
        Self { sentence, exit_code: exit::CONFIG }
    }
}

/// Writes the files of the agent, and returns its configuration. The configuration is written last, so that an existing one is
/// complete.
///
/// # Errors
/// [`JoinWriteError`]. The other files may have been written already.
pub fn write_join(join: &Join, place: &JoinPlace) -> Result<Config, JoinWriteError> {
    // Absolute paths, because an agent may be started in any folder.
    let absolute = |path: &Path| std::path::absolute(path).map_err(failed(path));
    let (path, data) = (absolute(&place.config)?, absolute(&place.data)?);
    let attached = [
        ("api-key", join.api_key.as_ref().map(|key| key.expose())),
        ("gateway-ca.pem", join.gateway_ca.as_deref()),
        ("issuer-ca.pem", join.issuer_ca.as_deref()),
    ];
    // `None` if the join string has no contents for the file.
    let attached = attached.map(|(name, text)| Some((data.join(name), text?)));
    let files = attached.each_ref().map(|file| file.as_ref().map(|(path, _)| path));
    let mut all = [Some(&path)].into_iter().chain(files).flatten();
    if let Some(there) = all.find(|path| !place.replaces && path.exists()) {
        return Err(JoinWriteError::usage(format!(
            "{} is there already and has been left as it is: choose another name with --config and --data, or replace it with \
             --force. Tokens in the wallet are kept either way",
            there.display()
        )));
    }
    for folder in [Some(data.as_path()), path.parent()].into_iter().flatten() {
        refuse_shared(folder)?;
    }
    let text = text(join, &place.listen, &path, files, &data.join("wallet"));
    let parsed = postern_config::parse::<Config>(&path.display().to_string(), &text, []);
    let config =
        parsed.map_err(|error| JoinWriteError { sentence: error.to_string(), exit_code: exit::CONFIG })?;
    config.check().map_err(JoinWriteError::start)?;
    let make = |directory: &Path| private_directory().create(directory).map_err(failed(directory));
    make(&data)?;
    path.parent().map_or(Ok(()), make)?;
    let put = |path: &Path, text: &str| write_private(path, text.as_bytes()).map_err(failed(path));
    for (path, text) in attached.iter().flatten() {
        put(path, &format!("{}\n", text.trim_end()))?;
    }
    check(&config).map_err(JoinWriteError::start)?;
    put(&path, &text)?;
    Ok(config)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> JoinWriteError {
    move |error| {
        let path = path.display();
        let sentence =
            format!("cannot write {path}: {error}; check the disk, and that this user may write there");
        JoinWriteError { sentence, exit_code: exit::RUNTIME }
    }
}

/// Refuses a folder in which every user may replace files.
#[cfg(unix)]
fn refuse_shared(folder: &Path) -> Result<(), JoinWriteError> {
    use std::os::unix::fs::MetadataExt;
    let mode = std::fs::metadata(folder).map_or(0, |metadata| metadata.mode() & 0o7777);
    let is_shared = mode & 0o002 != 0 && mode & 0o1000 == 0; // with the sticky bit, only a file's owner replaces it
    if !is_shared {
        return Ok(());
    }
    Err(JoinWriteError::usage(format!(
        "every user of this machine may write in {} (mode {mode:o}), and so put another key, wallet or configuration there: run \
         chmod 700 on it, or choose another folder with --config and --data",
        folder.display()
    )))
}

#[cfg(not(unix))]
fn refuse_shared(_: &Path) -> Result<(), JoinWriteError> {
    Ok(())
}

/// Formats the configuration, with a comment on each value.
fn text(
    join: &Join,
    listen: &Listen,
    path: &Path,
    [api_key, gateway_ca, issuer_ca]: [Option<&PathBuf>; 3],
    wallet: &Path,
) -> String {
    let file = |key: &str, about: &str, path: Option<&PathBuf>| {
        path.map_or(String::new(), |path| format!("# {about}\n{key} = {}\n", quoted_path(path)))
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
        gateway_ca = file("ca", "The certificates to trust for the gateway.", gateway_ca),
        issuer = urls(&join.issuers),
        api_key = file("api_key_file", "The account's API key, which is sent to this issuer alone.", api_key),
        issuer_ca = file("ca", "The certificates to trust for the issuer.", issuer_ca),
        wallet = quoted_path(wallet),
    )
}

/// Fetches the challenge of each gateway of `config`, and each issuer's key for it. Has each issuer sign one token, which is
/// discarded: no other request shows whether the API key is accepted.
///
/// # Errors
/// The first obstacle to minting, as a sentence.
pub async fn check_join(config: &Config) -> Result<(), String> {
    let hops = settings(config).map_err(|error| error.to_string())?;
    let Some(HopSettings { gateways, tokens, .. }) = hops.into_iter().next_back() else { return Ok(()) };
    for (number, gateway) in gateways.into_iter().map(Arc::new).enumerate() {
        let fetched = timeout(PATIENCE, fetch_challenge_from(&gateway)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(Outage::silent(gateway.url(), PATIENCE)));
        let challenge = fetched.map_err(|outage| outage.to_string())?;
        for issuer in &tokens.issuers {
            let minting = async {
                let key = issuer.key_for(&challenge).await?;
                let count = usize::from(number == 0);
                issuer.mint(&challenge.bytes, &key, count, 0, |_| ControlFlow::Continue(())).await
            };
            minting.await.map_err(|error: MintError| error.to_string())?;
        }
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
