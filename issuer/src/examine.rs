//! Examines the environment of an issuer without starting it, for `postern doctor`.

use crate::config::{AuthorizerConfig, Config};
use crate::database::Connection;
use crate::database::postgres::{Server, Session};
use crate::keys::exposing_mode;
use postern_daemon::BoxFuture;
use postern_daemon::examination::{
    Examinations, Finding, NAME_PATIENCE, PATIENCE, begin_connection, begin_names, descriptors, directory,
    silent_disk,
};
use postern_daemon::tls;
use reqwest::Url;
use std::path::Path;
use std::sync::Arc;

const NO_COUNT: &str = "no new key can be kept, and no token counted: requests for tokens are answered 503";

/// Examines the issuer's certificate, if its files can be used.
#[must_use]
pub fn certificates(config: &Config) -> Vec<Finding> {
    config.tls.iter().filter_map(|tls| Some(tls.load().ok()?.examine())).collect()
}

/// Examines what the issuer needs of this machine and of the network: open files, its directory, the database, the authorizer.
/// The configuration must be one that [`check`](fn@crate::check) accepts.
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
    if let Ok(Some(server)) = config.server() {
        let patience = NAME_PATIENCE + PATIENCE;
        let late = unusable(&server.place, &format!("no answer within {} s", patience.as_secs()));
        examinations.begin_within(patience, late, async move {
            tokio::task::spawn_blocking(move || vec![in_database(server)]).await.unwrap_or_default()
        });
    }
    if let Some(authorizer) = &config.authorizer {
        begin_authorizer(authorizer, &mut examinations);
    }
    let here = descriptors("limits.connections", config.limits.connections.get(), 1);
    std::iter::once(here).chain(examinations.findings().await).collect()
}

fn on_disk(config: &Config) -> Vec<Finding> {
    let own = directory("keys.directory", &config.keys.directory, NO_COUNT);
    std::iter::once(own).chain(open_directory(&config.keys.directory)).collect()
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

/// Connects to the database of several issuers.
fn in_database(server: Arc<Server>) -> Finding {
    let place = server.place.clone();
    match Connection::Postgres(Session::new(server)).batch("SELECT 1") {
        Ok(()) => Finding::well("database", format!("{place} (accounts.database) answers")),
        Err(error) => unusable(&place, &error.to_string()),
    }
}

fn unusable(place: &str, reason: &str) -> Finding {
    Finding::bad(
        "database",
        format!("{place} (accounts.database) cannot be used: {reason}"),
        NO_COUNT,
        "start it, or correct accounts.database and accounts.password_file",
    )
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
