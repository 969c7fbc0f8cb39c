//! Examines machine and network for an agent's configuration, without starting the agent: `postern doctor`. Never contacts a
//! gateway behind a first hop, which would learn this machine's address.

use crate::catalogue::Position;
use crate::config::{Config, HopConfig, server_url};
use crate::hop::connection::fetch_challenge_from;
use crate::hop::gateway::Gateway;
use crate::mint::error::MintError;
use crate::mint::issuer::{IssuerClient, Published};
use crate::settings::client;
use postern_daemon::BoxFuture;
use postern_daemon::examination::{
    Examinations, Finding, PATIENCE, begin_names, descriptors, directory, exposed_api_key, silent_disk,
    written,
};
use postern_daemon::tls;
use postern_token::UnixSeconds;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The consequence of having no issuer.
const WITHOUT_ISSUER: &str = "no tokens are minted: tunnels open while the wallet has some";

/// Examines the agent's own certificates. Skips those whose files are unusable.
#[must_use]
pub fn certificates(config: &Config) -> Vec<Finding> {
    let own =
        config.hops().flat_map(|(_, hop)| [hop.gateway.own_certificate(), hop.issuer.own_certificate()]);
    own.filter_map(|own| Some(own.ok()??.examine())).collect()
}

/// Examines the agent's requirements: open files, room for the wallet, names, gateways and issuers. The configuration must pass
/// [`check`](crate::check).
pub fn examine(config: &Config) -> BoxFuture<'_, Vec<Finding>> {
    Box::pin(async move {
        let mut examinations = Examinations::default();
        let mut here = vec![descriptors("listen.connections", config.listen.connections, 2)];
        // Gateways behind a first hop must not see this machine's address.
        let is_hidden = |position| position == Position::Last && config.first_hop.is_some();
        let urls = config.hops().flat_map(|(position, hop)| {
            let gateways = hop.gateway.url.list().iter().filter(move |_| !is_hidden(position));
            gateways.chain(hop.issuer.urls())
        });
        let host = |url: &String| Some(server_url(url)?.host_str()?.trim_matches(['[', ']']).to_owned());
        begin_names(
            &mut examinations,
            urls.filter_map(host),
            "what is there cannot be reached: see the lines about gateways and issuers",
        );
        for (position, hop) in config.hops() {
            here.extend(hop.issuer.api_key_file.as_deref().and_then(exposed_api_key));
            begin_wallet(&hop.wallet.path, &mut examinations);
            let hidden = is_hidden(position);
            for url in hop.gateway.url.list() {
                if hidden {
                    let seen = format!("{url} is reached through the first hop only, and was not tried");
                    here.push(Finding::well("gateway", seen));
                } else {
                    begin_gateway(url, hop, &mut examinations);
                }
            }
            for url in hop.issuer.urls() {
                begin_issuer(url, hop, &mut examinations);
            }
        }
        here.into_iter().chain(examinations.findings().await).collect()
    })
}

fn begin_wallet(path: &Path, examinations: &mut Examinations) {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let cost = "tokens cannot be kept, so the agent does not start, or opens no tunnels";
    let late = silent_disk("wallet.path", cost);
    examinations.begin(late, async move {
        let examining = move || directory("the folder of wallet.path", &folder, cost);
        tokio::task::spawn_blocking(examining).await.into_iter().collect()
    });
}

fn begin_gateway(url: &str, hop: HopConfig<'_>, examinations: &mut Examinations) {
    let Ok(gateway) = Gateway::new(url, hop.gateway).map(Arc::new) else { return };
    let cost = match hop.gateway.url.list().len() {
        1 => "no tunnel opens",
        _ => "tunnels go through the other gateways of the list; while none answers, no tunnel opens",
    };
    let away = move |seen: String| {
        Finding::bad("gateway", seen, cost, "check that the gateway runs, the way to it, and gateway.url")
    };
    let late = away(format!("{url} gave no challenge within {} s", PATIENCE.as_secs()));
    // For the issuer that the challenge names, if the configuration names none.
    let ca = hop.issuer.url.is_none().then(|| hop.issuer.ca.clone());
    begin_certificate(url, hop.gateway.ca.as_deref(), examinations);
    let url = url.to_owned();
    examinations.begin(late, async move {
        let began = Instant::now();
        match fetch_challenge_from(&gateway).await {
            Err(error) => vec![away(error.to_string())],
            Ok(challenge) => {
                let seen = format!("{url} answers with a challenge in {}", written(began.elapsed()));
                let mut found = vec![Finding::well("gateway", seen)];
                if let (Some(ca), Ok(parsed)) = (ca, challenge.token_challenge()) {
                    found.extend(of_issuer(IssuerClient::named(parsed.issuer_name(), ca)).await);
                }
                found
            }
        }
    });
}

fn no_issuer(seen: String) -> Finding {
    let remedy = "check that the issuer runs, the way to it, and [issuer]";
    Finding::bad("issuer", seen, WITHOUT_ISSUER, remedy)
}

fn begin_issuer(url: &str, hop: HopConfig<'_>, examinations: &mut Examinations) {
    begin_certificate(url, hop.issuer.ca.as_deref(), examinations);
    let late = no_issuer(format!("{url} did not answer within {} s", PATIENCE.as_secs()));
    examinations.begin(late, of_issuer(client(url, hop.issuer)));
}

async fn of_issuer(issuer: Result<IssuerClient, MintError>) -> Vec<Finding> {
    let began = Instant::now();
    let published = match issuer {
        Ok(issuer) => issuer.published().await,
        Err(error) => Err(error),
    };
    let Published { directory, url, skew } = match published {
        Ok(published) => published,
        Err(error) => return vec![no_issuer(error.to_string())],
    };
    let now = skew.corrected(UnixSeconds::now());
    let is_good = |end: &UnixSeconds| now < *end;
    let good = directory.token_keys.iter().filter(|key| key.not_after.as_ref().is_none_or(is_good)).count();
    let keys = match good {
        0 => Finding::bad(
            "issuer",
            format!("{url} lists no key whose tokens are good now"),
            WITHOUT_ISSUER,
            "its operator has to publish a newer key",
        ),
        good => Finding::well(
            "issuer",
            format!("{url} answers in {}, token keys: {good}", written(began.elapsed())),
        ),
    };
    let clock = skew.is_some().then(|| {
        let cost = "the times of keys and certificates are misread";
        Finding::bad("clock", skew.apart(), cost, "set it right, for example with NTP")
    });
    std::iter::once(keys).chain(clock).collect()
}

fn begin_certificate(url: &str, ca: Option<&Path>, examinations: &mut Examinations) {
    if let Some(url) = server_url(url) {
        tls::begin_shown_at(examinations, &url, ca);
    }
}
