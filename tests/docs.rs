//! The documents agree with the project: paths exist, metrics are registered, example configurations load, and
//! `docs/reference/configuration.md` matches the configuration types (`UPDATE_DOCS=1` writes it).

mod circles;
mod metric_tables;

use crate::support::root;
use postern_gateway::spans;
use postern_telemetry::catalogue::{Kind, Metric};
use postern_telemetry::{metrics, own};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Names at the root that are paths of this repository wherever they stand.
const ROOT_FILES: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "rust-toolchain.toml", ".ci/run"];
/// Endings of our files' names. A path with such an ending is checked even when its folder is not there.
const ENDS: [&str; 10] = [".md", ".rs", ".js", ".mjs", ".py", ".sh", ".yml", ".yaml", ".service", ".lua"];
const DAEMONS: [&str; 3] = ["gateway", "issuer", "client"];

/// One document.
struct Document {
    path: PathBuf,
    text: String,
}

/// The folders of all packages; each is called as its folder, behind "postern-".
fn packages() -> impl Iterator<Item = PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    crates.chain(["cli", "client", "gateway", "issuer", "loadtest"].map(|folder| root().join(folder)))
}

fn name_of(package: &Path) -> String {
    package.file_name().unwrap().to_str().unwrap().to_owned()
}

/// README.md, ARCHITECTURE.md and their like, and everything below the folders that have documents.
fn documents() -> Vec<Document> {
    let mut paths = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    let others =
        ["CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"].map(|name| root().join(name));
    paths.extend(others.into_iter().filter(|path| path.exists()));
    for folder in ["docs", "deploy", "crates/spend/benches", "crates/token/benches"] {
        collect(&root().join(folder), &mut paths);
    }
    let read = |path: PathBuf| {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Document { path, text }
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
}

/// The paths of this repository that a line names in backticks, without what follows them.
fn named_paths(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let first_word = quoted.filter_map(|quoted| quoted.split_whitespace().next());
    let cleaned = first_word.map(|word| word.trim_start_matches("./").trim_end_matches([',', '.', ':']));
    cleaned.filter(|word| looks_like_a_path(word)).collect()
}

fn looks_like_a_path(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !word.chars().all(is_plain) || word.starts_with(['/', '-']) || word.contains("//") {
        return false;
    }
    if ROOT_FILES.contains(&word) {
        return true;
    }
    match word.split_once('/') {
        None => word.ends_with(".md"),
        Some(("postern-data" | "target", _)) => false, // made by running, not by us
        Some((folder, _)) => root().join(folder).is_dir() || ENDS.iter().any(|end| word.ends_with(end)),
    }
}

/// The targets of `[text](target)` that are files.
fn linked_paths(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '#']).next());
    targets
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

#[test]
fn every_path_that_is_named_exists() {
    let mut missing = Vec::new();
    let mut count = 0;
    for Document { path, text } in documents() {
        for (index, line) in text.lines().enumerate() {
            let named = named_paths(line).into_iter().map(|named| (named, root().join(named)));
            let linked =
                linked_paths(line).into_iter().map(|linked| (linked, path.with_file_name("").join(linked)));
            for (name, full) in named.chain(linked) {
                count += 1;
                if !full.exists() {
                    missing.push(format!("{}, line {}: {name} does not exist", path.display(), index + 1));
                }
            }
        }
    }
    assert!(count > 20, "only {count} paths were found in the documents: is the search right?");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn what_looks_like_a_path_is_found() {
    let line = "`docs/a.md`, `scripts/test quick` and [that](b/c.md#d) `./README.md`, `nowhere/x.rs`, \
                `https://a.example/docs/x.md` `/readyz` `application/json` `a::b` `gateway.toml` [w](https://w.example)";
    assert_eq!(named_paths(line), ["docs/a.md", "scripts/test", "README.md", "nowhere/x.rs"]);
    assert_eq!(linked_paths(line), ["b/c.md"]);
}

/// Every metric that the binary can record.
fn declared() -> impl Iterator<Item = &'static Metric> {
    own::METRICS.iter().chain(crate::catalogue::CATALOGUES.iter().copied().flatten())
}

#[test]
fn every_metric_that_is_named_is_registered() {
    let mut unknown = Vec::new();
    let mut count = 0;
    let crates: Vec<String> = packages().map(|package| name_of(&package).replace('-', "_")).collect();
    for Document { path, text } in documents() {
        for name in metric_like(&text, &crates) {
            count += 1;
            let is_series = |metric: &&Metric| {
                let suffix = name.strip_prefix(metric.name);
                suffix.is_some_and(|suffix| {
                    suffix.is_empty()
                        || matches!(metric.kind, Kind::Histogram(_))
                            && matches!(suffix, "_bucket" | "_sum" | "_count")
                })
            };
            if !declared().any(|metric| is_series(&metric)) {
                unknown.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(count > 5, "only {count} metrics were found in the documents: is the search right?");
    assert!(unknown.is_empty(), "in no catalogue:\n{}", unknown.join("\n"));
}

/// Words that begin with "postern_", the names of our crates aside.
fn metric_like<'a>(text: &'a str, crates: &[String]) -> Vec<&'a str> {
    let is_crate = |rest: &str| crates.iter().any(|name| name == rest);
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.strip_prefix("postern_").is_some_and(|rest| !is_crate(rest))).collect()
}

/// `ARCHITECTURE.md` lists which crate uses which: exactly those of the manifests.
#[test]
fn the_arrows_between_crates_are_those_of_the_manifests() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let arrows = text.lines().filter_map(|line| line.split_once(" -> "));
    let named: BTreeMap<String, BTreeSet<String>> = arrows
        .filter(|(_, uses)| !uses.contains("->")) // the stages of a request
        .map(|(name, uses)| (name.trim().to_owned(), uses.split(", ").map(str::to_owned).collect()))
        .collect();
    let mut used = BTreeMap::new();
    for folder in packages() {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let uses: BTreeSet<String> = dependencies
            .lines()
            .filter(|line| line.contains("workspace = true"))
            .filter_map(|line| line.strip_prefix("postern-")?.split([' ', '.']).next())
            .map(str::to_owned)
            .collect();
        if !uses.is_empty() {
            used.insert(name_of(&folder), uses);
        }
    }
    assert_eq!(named, used);
}

#[test]
fn every_example_configuration_loads() {
    let mut seen = Vec::new();
    for Document { path, text } in documents() {
        for block in text.split("```toml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let first = block.lines().next().unwrap_or_default();
            let named = DAEMONS
                .iter()
                .find(|daemon| first.starts_with('#') && first.contains(&format!("{daemon}.toml")));
            let Some(daemon) = named else { continue };
            let name = format!("the {daemon}.toml in {}", path.display());
            let loaded = match *daemon {
                "gateway" => load::<postern_gateway::Config>(&name, block),
                "issuer" => load::<postern_issuer::Config>(&name, block),
                _ => load::<postern_client::Config>(&name, block),
            };
            loaded.unwrap_or_else(|error| panic!("{error}"));
            seen.push(*daemon);
        }
    }
    for daemon in DAEMONS {
        assert!(seen.contains(&daemon), "no document has an example of {daemon}.toml");
    }
}

fn load<T: serde::de::DeserializeOwned + schemars::JsonSchema>(
    name: &str,
    text: &str,
) -> Result<(), postern_config::ConfigError> {
    postern_config::parse::<T>(name, text, []).map(drop)
}

#[test]
fn the_configuration_reference_is_up_to_date() {
    let path = root().join("docs/reference/configuration.md");
    let generated = format!(
        "{INTRODUCTION}\n{}\n{}\n{}",
        postern_config::reference::<postern_gateway::Config>("postern gateway", &postern_gateway::FIXED),
        postern_config::reference::<postern_issuer::Config>("postern issuer", &postern_issuer::FIXED),
        postern_config::reference::<postern_client::Config>("postern client", &postern_client::FIXED),
    );
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == generated,
        "docs/reference/configuration.md does not match the configuration types; write it with\n\
         UPDATE_DOCS=1 cargo test --workspace --test across docs::"
    );
}

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by tests/docs.rs from the configuration types: change their doc comments, not this file. -->

This page lists every configuration key. Each daemon reads one TOML file (`postern gateway --config gateway.toml`) and refuses
unknown keys with the nearest known name. For every key outside lists of tables, an environment variable takes precedence over
the file: `POSTERN_STORE_MEMCACHED_TIMEOUT` for `[store.memcached] timeout`. It holds a TOML value, or plain text for a string.
A variable that names a section and no key in it stops the start; a variable that begins with `POSTERN_` and names nothing is
logged. A duration is \"250ms\", \"10s\", \"5m\", \"24h\" or \"30d\", a size \"512B\", \"64KiB\" or \"10MiB\", an address \"127.0.0.1:8080\",
\"[::1]:8080\" or \"localhost:8080\"; a number is whole and not negative. A key with neither \"required\" nor a default may be left
out; one with \"Restart\" changes with a restart, for the reason given. `docs/operate/install.md` has examples.
";

/// The inventory of what leaves a process is complete: it names every metric, span and attribute.
#[test]
fn everything_that_leaves_a_process_is_in_the_inventory() {
    let path = root().join("docs/reference/metrics.md");
    // The tables as they should be: whether they are is another test's concern, which may write them just now.
    let text = metric_tables::renewed(&std::fs::read_to_string(&path).unwrap());
    let metrics = declared().map(|metric| metric.name).chain(metrics::PROCESS.iter().copied());
    let spans = spans::SPANS.iter().chain(spans::ATTRIBUTES).copied();
    let missing: Vec<&str> =
        metrics.chain(spans).filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in {}: {missing:?}", path.display());
}

#[test]
fn the_constants_of_the_capacity_page_stand_in_the_reports_they_name() {
    let page = std::fs::read_to_string(root().join("docs/operate/capacity.md")).unwrap();
    let mut seen = 0;
    for row in page.lines().filter(|row| row.ends_with(".md` |")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, value, file] = cells[..] else { panic!("{row}") };
        let number = value.split(' ').next().unwrap().trim_end_matches(".0");
        let report = std::fs::read_to_string(root().join(file.trim_matches('`'))).unwrap();
        let numbers = report.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','));
        assert!(
            numbers
                .map(|found| found.trim_end_matches(['.', ',']))
                .any(|found| found.trim_end_matches(".0").trim_end_matches(".00") == number),
            "{name}: {number} is not in {file}"
        );
        seen += 1;
    }
    assert_eq!(seen, 12);
}
