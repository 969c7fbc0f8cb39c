//! deploy/examples: every file is read by what it is for.

use super::{deploy, items, read, text, yaml};
use postern_issuer::control::AccountsFile;
use postern_spend::routes::{Severity, judge_mcrouter};
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
    }
}

#[test]
fn declared_accounts_wait_for_the_keys_of_an_operator() {
    for name in ["company", "fleet"] {
        let path = deploy("examples").join(name).join("accounts.toml");
        let file: AccountsFile = load(path.clone());
        assert!(file.accounts.iter().all(|account| account.quota.is_some()), "{name}");
        // An operator has to make a key first: these are no hashes of keys.
        let text = read(&path);
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
fn the_fleet_has_three_replicas() {
    let gateway = serde_json::to_value(example("fleet").gateway).unwrap();
    let store = &gateway["store"]["memcached"];
    let mut replicas: Vec<&str> = items(&store["replicas"]).flat_map(items).map(text).collect();
    replicas.dedup();
    assert_eq!(replicas.len(), 3, "{store}");
    assert_eq!(store["addresses"], serde_json::json!([]));
    assert_eq!(store["transport"], "pipelined");
}

#[test]
fn each_replica_may_be_behind_its_own_mcrouter() {
    let shipped = without_comments(&read(&deploy("mcrouter/single.json")));
    let (before, rest) = shipped.split_once("[\"10.0.0.1:11211\"").unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    for number in 1..=3 {
        let file = read(&deploy(&format!("examples/fleet/mcrouter-{number}.json")));
        let findings = judge_mcrouter(&file, None);
        assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
        let wanted = format!("{before}[\"memcached-{number}:11211\"]{after}");
        assert_eq!(without_comments(&file), wanted, "it differs from deploy/mcrouter/single.json");
    }
}

/// The lines of mcrouter's JSON without what follows `//`, and without those that are empty then.
fn without_comments(json: &str) -> String {
    let lines = json.lines().map(|line| line.split("//").next().unwrap().trim_end());
    lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

#[test]
fn twemproxy_reads_its_configuration() {
    let file = deploy("twemproxy/nutcracker.yml");
    assert_eq!(yaml(&file)[0]["spent"]["auto_eject_hosts"], false);
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin";
    let tested = Command::new("nutcracker").env("PATH", path).arg("-t").arg("-c").arg(file).output();
    let tested = tested.expect("twemproxy is installed (apt-get install nutcracker)");
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
}

#[test]
fn prometheus_has_the_jobs_that_the_alerts_know() {
    let jobs = |file: &str| -> Vec<String> {
        let document = yaml(&deploy(file)).remove(0);
        items(&document["scrape_configs"]).map(|job| text(&job["job_name"]).to_owned()).collect()
    };
    assert_eq!(jobs("examples/fleet/prometheus.yml"), jobs("prometheus/prometheus.yml"));
}
