//! Examines what an agent with a configuration needs, without starting one: `postern doctor`. It goes where the agent goes: not to
//! a gateway that is reached through a first hop, which would learn this machine's address.

use crate::catalogue::Position;
use crate::config::{Config, HopConfig, server_url};
use crate::hop::fetch_challenge::fetch_challenge_from;
use crate::hop::gateway::Gateway;
use crate::mint::issuer::{IssuerClient, Published};
use postern_daemon::BoxFuture;
use postern_daemon::examination::{
    Examinations, Finding, PATIENCE, begin_names, descriptors, directory, written,
};
use postern_daemon::tls;
use postern_token::UnixSeconds;
use postern_token::header::Challenge;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The cost of being without an issuer.
const WITHOUT_ISSUER: &str = "no tokens are minted: tunnels open while the wallet has some";

/// Examines the agent's certificates whose files can be used.
#[must_use]
pub fn certificates(config: &Config) -> Vec<Finding> {
    let own =
        config.hops().flat_map(|(_, hop)| [hop.gateway.own_certificate(), hop.issuer.own_certificate()]);
    own.filter_map(|own| Some(own.ok()??.examine())).collect()
}

/// Examines what the agent needs of machine and network: open files, room for the wallet, names, gateways, issuers. The
/// configuration must pass [`check`](crate::check).
pub fn examine(config: &Config) -> BoxFuture<'_, Vec<Finding>> {
    Box::pin(find(config))
}

async fn find(config: &Config) -> Vec<Finding> {
    let mut examinations = Examinations::default();
    let mut here = vec![descriptors("listen.connections", config.listen.connections, 2)];
    let hosts = config.hops().flat_map(|(position, hop)| hosts(hop, is_hidden(config, position)));
    begin_names(
        &mut examinations,
        hosts,
        "what is there cannot be reached: see the lines about gateways and issuers",
    );
    for (position, hop) in config.hops() {
        begin_wallet(&hop.wallet.path, &mut examinations);
        let hidden = is_hidden(config, position);
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
}

/// Tells whether the gateways of this hop must not learn of this machine.
fn is_hidden(config: &Config, position: Position) -> bool {
    position == Position::Last && config.first_hop.is_some()
}

fn hosts(hop: HopConfig<'_>, hidden: bool) -> Vec<String> {
    let gateways = hop.gateway.url.list().iter().filter(|_| !hidden);
    let urls = gateways.chain(hop.issuer.urls());
    let host = |url: &String| Some(server_url(url)?.host_str()?.trim_matches(['[', ']']).to_owned());
    urls.filter_map(host).collect()
}

fn begin_wallet(path: &Path, examinations: &mut Examinations) {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let cost = "tokens cannot be kept, so the agent does not start, or opens no tunnels";
    let late = Finding::bad("disk", "the disk of wallet.path does not answer").costs(cost);
    examinations.begin(late, async move {
        let examining = move || directory("the folder of wallet.path", &folder, cost);
        tokio::task::spawn_blocking(examining).await.into_iter().collect()
    });
}

fn begin_gateway(url: &str, hop: HopConfig<'_>, examinations: &mut Examinations) {
    let Ok(gateway) = Gateway::new(url, hop.gateway).map(Arc::new) else { return };
    let cost = match hop.gateway.url.list().len() {
        1 => "no tunnel opens",
        _ => "tunnels go through the other gateways of the list",
    };
    let away = move |seen: String| Finding::bad("gateway", seen).costs(cost);
    let late = away(format!("{url} gave no challenge within {} s", PATIENCE.as_secs()))
        .remedy("check that the gateway runs, and the way to it");
    // The issuer that it names, where the configuration names none.
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
                if let Some(ca) = ca {
                    found.extend(of_named_issuer(&challenge, ca).await);
                }
                found
            }
        }
    });
}

async fn of_named_issuer(challenge: &Challenge, ca: Option<PathBuf>) -> Vec<Finding> {
    let Ok(parsed) = challenge.token_challenge() else { return Vec::new() };
    match IssuerClient::named(parsed.issuer_name(), ca) {
        Ok(issuer) => of_issuer(&issuer).await,
        Err(error) => vec![Finding::bad("issuer", error.to_string()).costs(WITHOUT_ISSUER)],
    }
}

fn begin_issuer(url: &str, hop: HopConfig<'_>, examinations: &mut Examinations) {
    let issuer = match IssuerClient::configured(url, hop.issuer) {
        Ok(issuer) => issuer,
        Err(error) => {
            let found = Finding::bad("issuer", error.to_string()).costs(WITHOUT_ISSUER);
            return examinations.begin(found.clone(), async move { vec![found] });
        }
    };
    begin_certificate(url, hop.issuer.ca.as_deref(), examinations);
    let late = Finding::bad("issuer", format!("{url} did not answer within {} s", PATIENCE.as_secs()))
        .costs(WITHOUT_ISSUER)
        .remedy("check that the issuer runs, and the way to it");
    examinations.begin(late, async move { of_issuer(&issuer).await });
}

async fn of_issuer(issuer: &IssuerClient) -> Vec<Finding> {
    let began = Instant::now();
    let Published { directory, url, skew } = match issuer.published().await {
        Ok(published) => published,
        Err(error) => return vec![Finding::bad("issuer", error.to_string()).costs(WITHOUT_ISSUER)],
    };
    let now = skew.corrected(UnixSeconds::now());
    let is_good = |end: &UnixSeconds| now < *end;
    let good = directory.token_keys.iter().filter(|key| key.not_after.as_ref().is_none_or(is_good)).count();
    let keys = match good {
        0 => Finding::bad("issuer", format!("{url} lists no key whose tokens are good now"))
            .costs(WITHOUT_ISSUER)
            .remedy("its operator has to publish a newer key"),
        good => Finding::well(
            "issuer",
            format!("{url} answers in {}, token keys: {good}", written(began.elapsed())),
        ),
    };
    let clock = skew.is_some().then(|| Finding::bad("clock", skew.to_string()));
    std::iter::once(keys).chain(clock).collect()
}

fn begin_certificate(url: &str, ca: Option<&Path>, examinations: &mut Examinations) {
    if let Some(url) = server_url(url) {
        tls::begin_shown_at(examinations, &url, ca);
    }
}
