//! The files of deploy/ are consistent: examples load, and the files that start the daemons (compose, Kubernetes,
//! systemd, containers, the script for one machine) agree with them about ports, limits, deadlines and names. Nothing is
//! started here; `tests/local_fleet.rs` does that for the script.

mod compose;
mod container;
mod examples;
mod kubernetes;
mod machine;
mod mcrouter;
mod package;

use crate::support::{read, root};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn deploy(path: &str) -> PathBuf {
    root().join("deploy").join(path)
}

/// The documents of a YAML file, with merge keys resolved.
fn yaml(path: &Path) -> Vec<Value> {
    let text = read(path);
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(|document| {
        let mut value = serde_yaml_ng::Value::deserialize(document)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // A merged value may have merge keys, too, which a pass leaves for the next.
        loop {
            let before = value.clone();
            value.apply_merge().unwrap();
            if value == before {
                break;
            }
        }
        serde_json::to_value(value).unwrap()
    });
    documents.collect()
}

/// The items of a list that may be absent.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

/// "40s".
fn seconds(value: &str) -> Duration {
    Duration::from_secs(value.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("{value}: no seconds")))
}

/// The port at the end of an address.
fn port(address: &str) -> u16 {
    address.rsplit(':').next().unwrap().parse().unwrap_or_else(|_| panic!("{address} has no port"))
}

/// A misspelt variable would stop a daemon, or have no effect.
/// The variables of all keys in the reference: section and key, which it lists by their names.
fn variables() -> BTreeSet<String> {
    let (mut variables, mut section) = (BTreeSet::new(), "");
    let reference = read(&root().join("docs/reference/configuration.md"));
    for line in reference.lines() {
        if line.starts_with("## ") {
            section = "";
        } else if let Some(heading) = line.strip_prefix("### `[") {
            section = heading.trim_end_matches("]`");
        } else if let Some((key, _)) = line.strip_prefix("- `").and_then(|row| row.split_once('`'))
            && !section.starts_with('[')
        {
            let path = [section, key].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
            variables.insert(format!("POSTERN_{}", path.join("_").replace('.', "_").to_uppercase()));
        }
    }
    variables
}

fn assert_variable_is_known(name: &str) {
    let others = ["jaeger/jaeger.yaml", "grafana/provisioning/datasources/prometheus.yaml"];
    let others = others.into_iter().chain(["grafana/provisioning/dashboards/postern.yaml"]);
    let known = variables().contains(name)
        || others
            .map(|file| read(&deploy(file)))
            .any(|file| file.match_indices(name).any(|(at, _)| !file[at + name.len()..].starts_with('_')));
    assert!(known, "{name} is no variable of anything here");
}

/// The components that `deploy/local/fleet` starts.
fn components() -> BTreeSet<String> {
    let listed = std::process::Command::new(deploy("local/fleet")).arg("--list").output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}
