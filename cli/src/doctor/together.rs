//! Finds faults between the configurations of one folder: gateways of a fleet that differ, certificates that do not cover the
//! URLs in other files. Also finds listeners that other machines reach.

use super::config::Loaded;
use http::Uri;
use postern_daemon::examination::Finding;
use postern_daemon::tls::{ServerTls, TlsConfig};
use postern_gateway::config::StoreKind;
use std::mem::discriminant;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A configuration's file and content.
pub(super) type Configuration<'a> = (&'a Path, &'a Loaded);

/// Examines `one` against the other configurations in its folder.
pub(super) fn examine(one: Configuration<'_>, all: &[Configuration<'_>]) -> Vec<Finding> {
    let siblings: Vec<_> =
        all.iter().filter(|(path, _)| *path != one.0 && path.parent() == one.0.parent()).copied().collect();
    let mut found = exposures(one.1);
    if let Loaded::Gateway(gateway) = one.1 {
        found.extend(siblings.iter().filter_map(|other| differs(gateway, *other)));
    }
    found.extend(names(one.1, &siblings));
    found
}

fn exposures(config: &Loaded) -> Vec<Finding> {
    let [(_, address), (_, admin)] = config.listeners();
    let mut found = Vec::new();
    if is_open(address.ip()) && server_tls(config).is_none() {
        let (carried, ending) = match config {
            Loaded::Gateway(_) => ("tokens and the names of targets", "[tls]"),
            Loaded::Issuer(_) => ("API keys", "[tls]"),
            Loaded::Client(_) => ("what programs ask for", "127.0.0.1 in listen.address"),
        };
        let seen = format!("{address} (listen.address) is reached from other machines, without TLS");
        let finding = Finding::look("listener", seen)
            .costs(format!("who is on the way reads {carried}"))
            .remedy(format!("write {ending}, or let nothing reach it but a balancer that ends TLS"));
        found.push(finding);
    }
    if is_open(admin.ip()) {
        let finding = Finding::look(
            "listener",
            format!("{admin} (listen.admin) is reached from other machines"),
        )
        .costs("everyone who reaches it sees rates, refusals and addresses of the links; it has no password")
        .remedy("write 127.0.0.1 in listen.admin, or an address of a network for operators alone");
        found.push(finding);
    }
    found
}

/// `true` if `address` is neither loopback nor private.
fn is_open(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_private(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unique_local(),
    }
}

/// Returns a finding if the other gateway has the same challenge and another store, or the same store and another challenge.
fn differs(gateway: &postern_gateway::Config, (path, other): Configuration<'_>) -> Option<Finding> {
    let Loaded::Gateway(other) = other else { return None };
    let (ours, theirs, name) = (&gateway.challenge, &other.challenge, path.display());
    let one_challenge = ours.origin == theirs.origin && ours.issuer_name == theirs.issuer_name;
    match (one_challenge, same_store(gateway, other)) {
        (true, false) => Some(Finding::bad(
            "fleet",
            format!("{name} has the same challenge and another store"),
            "a token can be spent once at each of the two",
            "write one store into both (store.kind = \"memcached\"), or another challenge.origin into one",
        )),
        (true, true) if gateway.store.kind == StoreKind::Embedded => Some(Finding::bad(
            "fleet",
            format!("{name} has the same embedded store ({})", gateway.store.path.display()),
            "only one of the two starts; on two machines each has its own records, and a token can be spent once at each of them",
            "store.kind = \"memcached\" in both, or another store.path and another challenge.origin in one",
        )),
        (false, true) => {
            let (key, ours, theirs) = match ours.origin == theirs.origin {
                true => ("issuer_name", &ours.issuer_name, &theirs.issuer_name),
                false => ("origin", &ours.origin, &theirs.origin),
            };
            let seen =
                format!("challenge.{key} is {ours:?} here and {theirs:?} in {name}, and both share a store");
            Some(Finding::bad(
                "fleet",
                seen,
                "a token for one is refused by the other, with 407",
                format!("write one challenge.{key} into the files of all gateways of the fleet"),
            ))
        }
        _ => None,
    }
}

fn same_store(one: &postern_gateway::Config, other: &postern_gateway::Config) -> bool {
    let (one, other) = (&one.store, &other.store);
    match (one.kind, other.kind) {
        (StoreKind::Embedded, StoreKind::Embedded) => one.path == other.path,
        (StoreKind::Memcached, StoreKind::Memcached) => {
            let sorted = |list: &[String]| {
                let mut list = list.to_vec();
                list.sort();
                list
            };
            let shares = |a: &[String], b: &[String]| a.is_empty() && b.is_empty() || sorted(a) == sorted(b);
            let (one, other) = (&one.memcached, &other.memcached);
            shares(&one.addresses, &other.addresses)
                && shares(&one.replicas.concat(), &other.replicas.concat())
        }
        _ => false,
    }
}

/// Checks that the daemon's certificate covers the names by which the folder's other files reach the daemon.
fn names(config: &Loaded, siblings: &[Configuration<'_>]) -> Vec<Finding> {
    let Some(tls) = server_tls(config).and_then(|tls| tls.load().ok()) else { return Vec::new() };
    let [(_, address), _] = config.listeners();
    let mut urls: Vec<String> = siblings.iter().flat_map(|(_, other)| urls_to(config, other)).collect();
    urls.sort();
    urls.dedup();
    // Of daemons with one port on several machines, the certificate shows whose the URL is.
    let is_alike = |other: &Loaded| {
        discriminant(other) == discriminant(config) && other.listeners()[0].1.port() == address.port()
    };
    let others = siblings.iter().filter(|(_, other)| is_alike(other));
    let others: Vec<ServerTls> =
        others.filter_map(|(_, other)| server_tls(other).and_then(|tls| tls.load().ok())).collect();
    urls.iter().filter_map(|url| wrong_name(&tls, &others, address, url)).collect()
}

fn wrong_name(tls: &ServerTls, others: &[ServerTls], address: SocketAddr, url: &str) -> Option<Finding> {
    let parsed = url.parse::<Uri>().ok()?;
    let leads_here =
        parsed.scheme_str() == Some("https") && parsed.port_u16().unwrap_or(443) == address.port();
    let host = parsed.host().filter(|_| leads_here)?;
    let is_for_another = others.iter().any(|other| other.examine_name(host, url).is_none());
    if is_for_another { None } else { tls.examine_name(host, url) }
}

/// Returns the URLs in `other` of daemons of this kind.
fn urls_to(config: &Loaded, other: &Loaded) -> Vec<String> {
    match (config, other) {
        (Loaded::Issuer(_), Loaded::Gateway(other)) => other.issuer.directory.iter().cloned().collect(),
        (Loaded::Issuer(_), Loaded::Client(other)) => {
            other.issuer.url.iter().flat_map(postern_client::Urls::list).cloned().collect()
        }
        (Loaded::Gateway(_), Loaded::Client(other)) => other.gateway.url.list().to_vec(),
        _ => Vec::new(),
    }
}

fn server_tls(config: &Loaded) -> Option<&TlsConfig> {
    match config {
        Loaded::Gateway(config) => config.tls.as_ref(),
        Loaded::Issuer(config) => config.tls.as_ref(),
        Loaded::Client(_) => None,
    }
}
