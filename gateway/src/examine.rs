//! Examination of a gateway's dependencies for `postern doctor`, without starting a gateway.

mod store;

use crate::config::{Config, Peers, ResolverConfig, ResolverKind, StoreKind};
use crate::health::plural;
use crate::keys::keyring::{Keyring, Outlook};
use crate::keys::source::{self, Clock, Fetched, Source};
use crate::next_hops;
use crate::request::resolve;
use postern_daemon::BoxFuture;
use postern_daemon::examination::{
    Examinations, Finding, PATIENCE, SLOW, begin_connection, begin_names, descriptors, written,
};
use postern_daemon::tls::{self, OwnCertificate};
use postern_token::UnixSeconds;
use std::time::{Duration, Instant};

const WITHOUT_KEYS: &str =
    "a gateway that has no saved keys answers every request 503; with saved ones it serves until they retire";

/// Examines the certificates that the gateway presents, as far as their files can be used.
#[must_use]
pub fn certificates(config: &Config) -> Vec<Finding> {
    let servers = [config.tls.clone(), config.peers.as_ref().map(Peers::tls)].into_iter().flatten();
    let servers = servers.filter_map(|tls| Some(tls.load().ok()?.examine()));
    let hops = config.egress.next_hops.iter().filter_map(|hop| hop.client_tls().ok()??.own);
    let store =
        (config.store.kind == StoreKind::Memcached).then_some(config.store.memcached.tls.as_ref()).flatten();
    let store = store.and_then(|tls| OwnCertificate::load(tls.certificate.clone()?, tls.key.clone()?).ok());
    servers.chain(hops.chain(store).map(|own| own.examine())).collect()
}

/// Examines the gateway's needs of this machine and the network: open files, names, the issuer, the store, name servers, next
/// hops, the collector of traces. [`check`](crate::check()) must accept the configuration.
pub fn examine(config: &Config) -> BoxFuture<'_, Vec<Finding>> {
    Box::pin(async move {
        let mut examinations = Examinations::default();
        let here = vec![descriptors("limits.connections", config.limits.connections, 2)];
        begin_names(
            &mut examinations,
            hosts(config),
            "what is there cannot be reached: see the lines about the issuer, the store and traces",
        );
        begin_issuer(config, &mut examinations);
        store::begin(config, &mut examinations);
        begin_name_servers(&config.egress.resolver, &mut examinations);
        next_hops::examine(&config.egress, &mut examinations);
        begin_tracing(config, &mut examinations);
        here.into_iter().chain(examinations.findings().await).collect()
    })
}

/// Returns the hosts that the gateway resolves through the system's resolver.
fn hosts(config: &Config) -> Vec<String> {
    let urls = [&config.issuer.directory, &config.tracing.endpoint].into_iter().flatten();
    let urls = urls.filter_map(|url| Some(url.parse::<reqwest::Url>().ok()?.host_str()?.to_owned()));
    urls.map(|host| host.trim_matches(['[', ']']).to_owned()).chain(store::hosts(&config.store)).collect()
}

fn begin_issuer(config: &Config, examinations: &mut Examinations) {
    let Ok(source) = Source::new(config) else { return };
    let remedy = match source.url() {
        Some(_) => "check that the issuer runs, the way to it, and issuer.directory",
        None => "check the file, and issuer.keys",
    };
    let away = move |seen: String| Finding::bad("issuer", seen, WITHOUT_KEYS, remedy);
    let place = source.url().map_or_else(|| "the file of the issuer's keys".to_owned(), str::to_owned);
    let late = away(format!("{place} did not answer within {} s", PATIENCE.as_secs()));
    examinations.begin(late, async move {
        let (began, asked) = (Instant::now(), UnixSeconds::now());
        let answer = match source.fetch().await {
            Ok(answer) => answer,
            Err(error) => return vec![away(error.to_string())],
        };
        let mut clock = Clock::default();
        answer.date.iter().for_each(|theirs| clock.compare(*theirs, asked, UnixSeconds::now()));
        let skew = clock.apart().map(|apart| Finding::bad("clock", apart, source::COST, source::REMEDY));
        let keys = answer.fresh.map(|fetched| keys(&source, &place, fetched, began.elapsed()));
        keys.into_iter().chain(skew).collect()
    });
    let url = config.issuer.directory.as_ref().and_then(|url| url.parse().ok());
    if let Some(url) = url {
        tls::begin_shown_at(examinations, &url, config.issuer.ca.as_deref());
    }
}

/// Reports the number of the directory's keys, and whether one of them is in use now.
fn keys(source: &Source, place: &str, fetched: Fetched, took: Duration) -> Finding {
    let (Fetched { directory, mut accepted, .. }, now) = (fetched, UnixSeconds::now());
    let keyring = match Keyring::default().updated(&directory, &mut accepted, source.lifetimes, now) {
        Ok(keyring) => keyring,
        Err(error) => {
            let remedy = "have the issuer publish keys that are fit, or correct [issuer]";
            return Finding::bad("issuer", format!("{place}: {error}"), WITHOUT_KEYS, remedy);
        }
    };
    let known = plural(keyring.len(), "token key");
    if keyring.outlook(now) != Outlook::Usable {
        return Finding::bad(
            "issuer",
            format!("{place} lists {known}, and none is in use now"),
            "no token is accepted: every request is answered 503",
            "compare the clocks of both machines; else the issuer has to publish a newer key",
        );
    }
    let seen = format!("{place} answers in {}, with {known}", written(took));
    match accepted.passed_over {
        Some(reason) => Finding::look("issuer", format!("{seen}; one cannot be used here: {reason}"))
            .costs("tokens of that key are refused"),
        None if took >= SLOW => Finding::look("issuer", seen)
            .costs("a key that is new is known that much later")
            .remedy("check the load of the issuer, and the way to it"),
        None => Finding::well("issuer", seen),
    }
}

fn begin_tracing(config: &Config, examinations: &mut Examinations) {
    let endpoint = config.tracing.endpoint.as_ref().and_then(|url| url.parse::<reqwest::Url>().ok());
    let Some((host, port)) =
        endpoint.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)))
    else {
        return;
    };
    let away = Finding::look("traces", format!("no collector is at {host}:{port}"))
        .costs("traces are dropped; requests are served")
        .remedy("start the collector, or correct tracing.endpoint");
    begin_connection(examinations, host, port, "traces", away);
}

/// Starts a query to each name server for the servers of the root zone: every resolver can answer it, and it reveals nothing.
fn begin_name_servers(settings: &ResolverConfig, examinations: &mut Examinations) {
    let remedy = match settings.kind {
        ResolverKind::System => "correct /etc/resolv.conf, or name other servers in [egress.resolver]",
        _ => "correct egress.resolver.servers, or remove this one",
    };
    let servers = match resolve::each_server(settings) {
        Ok(servers) => servers,
        Err(error) => {
            let without = Finding::bad("names", error.to_string(), "the gateway does not start", remedy);
            return examinations.begin(without.clone(), async move { vec![without] });
        }
    };
    let cost = match servers.len() {
        1 => "tunnels to names are refused, with 502 or 504, and their tokens are spent",
        _ => "tunnels to names wait for it until another name server answers",
    };
    for server in servers {
        let address = server.address;
        let away = move |reason: &str| {
            Finding::bad("names", format!("the name server {address} {reason}"), cost, remedy)
        };
        let late = away(&format!("does not answer within {} s", PATIENCE.as_secs()));
        examinations.begin(late, async move {
            let found = match server.ask().await {
                Ok(took) if took < SLOW => {
                    Finding::well("names", format!("the name server {address} answers in {}", written(took)))
                }
                Ok(took) => {
                    Finding::look("names", format!("the name server {address} answers in {}", written(took)))
                        .costs("each tunnel to a name that is not kept waits for that")
                        .remedy("choose one that is nearer, or run a caching resolver on this machine")
                }
                Err(reason) => away(&format!("gives no answer: {reason}")),
            };
            vec![found]
        });
    }
}
