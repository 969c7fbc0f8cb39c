//! deploy/examples: every file is read by what it is for.

use super::{deploy, items, read, text, yaml};
use postern_gateway::config::{Bind, StoreKind};
use postern_mcrouter_lint::{Severity, judge};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The three configurations of one folder.
pub struct Example {
    pub gateway: postern_gateway::Config,
    pub issuer: postern_issuer::Config,
    pub client: postern_client::Config,
}

pub fn example(name: &str) -> Example {
    let folder = deploy("examples").join(name);
    Example {
        gateway: load(folder.join("gateway.toml")),
        issuer: load(folder.join("issuer.toml")),
        client: load(folder.join("client.toml")),
    }
}

fn load<T: serde::de::DeserializeOwned + schemars::JsonSchema>(path: PathBuf) -> T {
    postern_config::load(&path, []).unwrap_or_else(|error| panic!("{error}"))
}

/// Each folder of examples by its name.
pub fn all() -> BTreeMap<String, Example> {
    let folders = std::fs::read_dir(deploy("examples")).unwrap().map(|entry| entry.unwrap());
    let names =
        folders.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    names.map(|name| (name.clone(), example(&name))).collect()
}

/// Of `https://host:port`.
fn host(url: &str) -> &str {
    let (_, authority) = url.split_once("://").unwrap();
    authority.split(':').next().unwrap()
}

#[test]
fn every_example_loads() {
    let all = all();
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["company", "fleet", "one-server"]);
    let readme = read(&deploy("examples/README.md"));
    for (name, example) in all {
        assert!(
            readme.contains(&format!("`deploy/examples/{name}/`")),
            "the README does not explain when to take {name}"
        );
        assert!(example.gateway.drain.deadline.get() > Duration::ZERO, "{name}");
        // Or the agent would not answer the gateway's challenge.
        let known_as = match &example.client.gateway {
            gateway if gateway.origin.is_some() => gateway.origin.clone().unwrap(),
            gateway => host(&gateway.url.list()[0]).to_owned(),
        };
        assert!(
            example.gateway.challenge.origin.split(',').any(|name| name.trim() == known_as),
            "{name}: {known_as}"
        );
        // An operator has to make a key first: these are no hashes of keys.
        let text = read(&deploy("examples").join(&name).join("issuer.toml"));
        let hashes: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("key_sha256 = \"")?.strip_suffix('"')).collect();
        assert!(!hashes.is_empty(), "{name} has no account");
        for hash in hashes {
            assert!(
                hash.chars().all(|digit| hash.starts_with(digit)),
                "{name}: {hash} may be the hash of a key"
            );
        }
    }
}

/// Whoever begins with the shared store has tokens bound to it. A file that does not say so keeps its challenge over an
/// upgrade, during which gateways of the version before would refuse marks.
#[test]
fn tokens_of_a_new_fleet_are_bound_and_those_of_an_old_one_stay_as_they_are() {
    for (name, Example { gateway, .. }) in all() {
        let can_lose_records = gateway.store.kind == StoreKind::Memcached;
        let bind = if can_lose_records { Bind::Offer } else { Bind::Off };
        assert_eq!(gateway.challenge.bind, bind, "{name}");
    }
    let silent = read(&deploy("examples/fleet/gateway.toml")).replace("bind = \"offer\"\n", "");
    let config: postern_gateway::Config = postern_config::parse("gateway.toml", &silent, []).unwrap();
    assert_eq!(config.challenge.bind, Bind::Off);
}

#[test]
fn the_examples_commented_out_can_be_switched_on() {
    let text = read(&deploy("examples/fleet/gateway.toml"));
    let switched: String = text
        .lines()
        .map(|line| {
            let is_key = line.starts_with("#[")
                || line.starts_with('#') && line.contains(" = ") && !line.starts_with("# ");
            if is_key { format!("{}\n", &line[1..]) } else { format!("{line}\n") }
        })
        .collect();
    let config: postern_gateway::Config = postern_config::parse("gateway.toml", &switched, []).unwrap();
    assert!(config.tls.is_some());
}

#[test]
fn the_fleet_has_one_store_whichever_router_it_uses() {
    let findings = judge(&read(&deploy("examples/fleet/mcrouter.json")));
    assert!(findings.iter().all(|finding| finding.severity != Severity::Refuse), "{findings:?}");
    assert!(
        findings.iter().any(|finding| finding.to_string().contains("a quorum: 3 replicas")),
        "{findings:?}"
    );

    let twemproxy = &yaml(&deploy("examples/fleet/nutcracker.yml"))[0]["spent"];
    let shipped = &yaml(&deploy("twemproxy/nutcracker.yml"))[0]["spent"];
    for (key, value) in shipped.as_object().unwrap() {
        if !["listen", "servers"].contains(&key.as_str()) {
            assert_eq!(&twemproxy[key], value, "{key} differs from deploy/twemproxy/nutcracker.yml");
        }
    }
    assert_eq!(twemproxy["auto_eject_hosts"], false);
    for (number, server) in items(&twemproxy["servers"]).enumerate() {
        let host = format!("memcached-{}:11211", number + 1);
        assert!(text(server).starts_with(&format!("{host}:1 ")), "{server}");
        assert!(read(&deploy("examples/fleet/mcrouter.json")).contains(&format!("\"{host}\"")));
    }
}

#[test]
fn twemproxy_reads_its_configurations() {
    for file in ["examples/fleet/nutcracker.yml", "twemproxy/nutcracker.yml"] {
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin";
        let tested =
            Command::new("nutcracker").env("PATH", path).arg("-t").arg("-c").arg(deploy(file)).output();
        let tested = tested.expect("twemproxy is installed (apt-get install nutcracker)");
        assert!(tested.status.success(), "{file}: {}", String::from_utf8_lossy(&tested.stderr));
    }
}

#[test]
fn prometheus_has_the_jobs_that_the_alerts_know() {
    let jobs = |file: &str| -> Vec<String> {
        let document = yaml(&deploy(file)).remove(0);
        items(&document["scrape_configs"]).map(|job| text(&job["job_name"]).to_owned()).collect()
    };
    assert_eq!(jobs("examples/fleet/prometheus.yml"), jobs("prometheus/prometheus.yml"));
}
