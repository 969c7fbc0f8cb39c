//! Examines the environment of an issuer without starting it, for `postern doctor`.

use crate::config::{AuthorizerConfig, Config};
use crate::keys::exposing_mode;
use crate::{accounts, keys};
use postern_daemon::BoxFuture;
use postern_daemon::examination::{
    Examinations, Finding, begin_connection, begin_names, closed, descriptors, directory, silent_disk,
};
use postern_daemon::tls;
use postern_daemon::utc::rough;
use postern_token::UnixSeconds;
use reqwest::Url;
use std::path::Path;
use std::time::Duration;

/// Age beyond which a copy of the accounts deserves a look; an alert has the same limit.
const OLD_COPY: Duration = Duration::from_secs(3600);
const NO_COUNT: &str = "no new key can be kept, and no token counted: requests for tokens are answered 503";
const WITHOUT_COPIES: &str =
    "this issuer keeps the keys and accounts that it has taken up, and without any it answers 503";
const COPY: &str =
    "copy them again: docs/operate/accounts.md, \"Several issuers\", has the script and the modes";

/// Examines the issuer's certificate, if its files can be used.
#[must_use]
pub fn certificates(config: &Config) -> Vec<Finding> {
    config.tls.iter().filter_map(|tls| Some(tls.load().ok()?.examine())).collect()
}

/// Examines what the issuer needs of this machine and of the network: open files, its directory, the first issuer's copies, the
/// authorizer. The configuration must be one that [`check`](fn@crate::check) accepts.
pub fn examine(config: &Config) -> BoxFuture<'_, Vec<Finding>> {
    Box::pin(find(config))
}

async fn find(config: &Config) -> Vec<Finding> {
    let mut examinations = Examinations::default();
    let late = silent_disk("keys.directory", NO_COUNT);
    let of_disk = config.clone();
    examinations.begin(late, async move {
        tokio::task::spawn_blocking(move || on_disk(&of_disk)).await.unwrap_or_default()
    });
    if let Some(authorizer) = &config.authorizer {
        begin_authorizer(authorizer, &mut examinations);
    }
    let here = descriptors("limits.connections", config.limits.connections.get(), 1);
    std::iter::once(here).chain(examinations.findings().await).collect()
}

fn on_disk(config: &Config) -> Vec<Finding> {
    let own = directory("keys.directory", &config.keys.directory, NO_COUNT);
    std::iter::once(own)
        .chain(open_directory(&config.keys.directory))
        .chain(config.follows().into_iter().flat_map(|copies| of_copies(config, copies)))
        .collect()
}

/// Reports a key directory that other users may list or change. A start checks the mode of each file in it.
fn open_directory(directory: &Path) -> Option<Finding> {
    let mode = exposing_mode(directory)?;
    let place = directory.display();
    Some(
        Finding::look("disk", format!("{place} (keys.directory) is open to other users (mode {mode:04o})"))
            .costs("who may write there can take keys and accounts away")
            .remedy(format!("chmod 700 {place}")),
    )
}

/// Examines the copies of the first issuer's files as a follower does.
fn of_copies(config: &Config, copies: &Path) -> Vec<Finding> {
    let bad = |seen: String| Finding::bad("copies", seen, WITHOUT_COPIES, COPY);
    let place = format!("{} (group.follow)", copies.display());
    match std::fs::read_dir(copies) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return vec![closed("copies", &place, copies, &error)];
        }
        Err(error) => return vec![bad(format!("{place} cannot be read: {error}"))],
    }
    let now = UnixSeconds::now();
    let keys = match keys::examine_copies(&config.keys, copies, now) {
        Ok(count) => Finding::well("copies", format!("{place} has token keys that can be taken up: {count}")),
        Err(error) => bad(error.to_string()),
    };
    let accounts = match accounts::examine_copy(copies) {
        Err(error) => bad(error.to_string()),
        Ok(age) if age > OLD_COPY => {
            Finding::look("copies", format!("the accounts in {place} are of {} ago", rough(age.as_secs())))
                .costs("changes of accounts since then are not known here")
                .remedy(COPY)
        }
        Ok(age) => Finding::well("copies", format!("{place} has accounts of {} ago", rough(age.as_secs()))),
    };
    vec![keys, accounts]
}

fn begin_authorizer(config: &AuthorizerConfig, examinations: &mut Examinations) {
    let Ok(url) = config.url.parse::<Url>() else { return };
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return };
    let cost = "accounts that only it knows get no tokens: 503";
    begin_names(examinations, [host.trim_matches(['[', ']']).to_owned()], cost);
    let away = Finding::bad(
        "authorizer",
        format!("nothing takes connections at {host}:{port}"),
        cost,
        "start it, or correct authorizer.url",
    );
    begin_connection(examinations, host, port, "authorizer", away);
    tls::begin_shown_at(examinations, &url, config.ca.as_deref());
}
