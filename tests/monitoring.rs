//! The references in deploy/ exist: metrics, labels and their values, recorded series, jobs, runbooks; and every alert
//! has a test that makes it fire. A dashboard with a name that is not registered shows an empty panel without an error.

mod catalogue;
mod queries;
mod rules;

use crate::support::{read, root};
use catalogue::Catalogue;
use rules::Rule;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

/// The files below a folder that end so, with their texts.
fn files(folder: &str, endings: &[&str]) -> BTreeMap<PathBuf, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| path.extension().is_some_and(|found| found == *ending)) {
                let text = read(&path);
                found.insert(path, text);
            }
        }
    }
    assert!(!found.is_empty(), "nothing in {folder}");
    found
}

fn rules() -> Vec<Rule> {
    let files = files("deploy/prometheus/rules", &["yml"]);
    let rules: Vec<_> = files.values().flat_map(|text| rules::of(text)).collect();
    // Read by lines, so: as many rules as there are expressions, or one was overlooked.
    let expressions: usize = files.values().map(|text| text.matches("expr:").count()).sum();
    assert_eq!(rules.len(), expressions);
    rules
}

fn alerts() -> Vec<Rule> {
    let alerts: Vec<_> = rules().into_iter().filter(|rule| rule.is_alert).collect();
    assert!(!alerts.is_empty());
    alerts
}

/// Of the project, with the recorded series and the scraped jobs.
fn catalogue() -> Catalogue {
    let jobs = rules::values("job_name", &read(&root().join("deploy/prometheus/prometheus.yml")));
    assert!(!jobs.is_empty());
    let mut catalogue = Catalogue::of_the_project(jobs);
    for rule in rules().iter().filter(|rule| !rule.is_alert) {
        catalogue.record(&rule.name, rule.value("expr"));
    }
    catalogue
}

#[test]
fn what_is_queried_is_registered() {
    let catalogue = catalogue();
    let (mut faults, mut selectors) = (Vec::new(), 0);
    for (path, text) in files("deploy", &["yml", "yaml", "json"]) {
        // The rules' tests may use any job.
        let any_job = path.parent().is_some_and(|folder| folder.ends_with("prometheus/tests"));
        let asked = queries::selectors(&text);
        selectors += asked.len();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let wrong = asked.iter().flat_map(|selector| catalogue.faults(selector, any_job));
        faults.extend(wrong.chain(catalogue.grouping_faults(&text)).map(|fault| format!("{name}: {fault}")));
    }
    println!("{selectors} selectors");
    assert!(selectors > 100, "{selectors}: the files are not read right");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_alert_has_a_severity_and_a_remedy() {
    let mut names = HashSet::new();
    for alert in alerts() {
        let name = &alert.name;
        assert!(names.insert(name.clone()), "{name} stands there twice");
        assert!(["critical", "warning", "info"].contains(&alert.label("severity")), "{name}");
        for annotation in ["summary", "description"] {
            assert!(
                alert.value(annotation).ends_with(['.', '%']),
                "the {annotation} of {name} is no sentence"
            );
        }
        let runbook = alert.value("runbook");
        assert_eq!(runbook, format!("docs/operate/alerts.md#alert-{}", rules::kebab(name)), "{name}");
    }
}

#[test]
fn every_runbook_is_a_section_of_the_operations_guide_and_no_other_is_there() {
    let headings = rules::anchors(&read(&root().join("docs/operate/alerts.md")));
    let missing: Vec<_> = alerts()
        .iter()
        .map(|alert| alert.value("runbook").to_owned())
        .filter(|runbook| !runbook.split_once('#').is_some_and(|(_, anchor)| headings.contains(anchor)))
        .collect();
    assert!(missing.is_empty(), "{missing:#?} are not among {headings:#?}");
    let known: HashSet<_> =
        alerts().iter().map(|alert| format!("alert-{}", rules::kebab(&alert.name))).collect();
    let stale: Vec<_> =
        headings.iter().filter(|anchor| anchor.starts_with("alert-") && !known.contains(*anchor)).collect();
    assert!(stale.is_empty(), "no alert leads to {stale:#?}");
}

#[test]
fn every_alert_fires_in_a_test() {
    let tests: String = files("deploy/prometheus/tests", &["yml"]).into_values().collect();
    for alert in alerts() {
        assert!(rules::fires_in(&alert.name, &tests), "{} fires in no test", alert.name);
    }
}

/// The dashboards by the names of their files.
pub fn dashboards() -> BTreeMap<String, serde_json::Value> {
    let read = |(path, text): (PathBuf, String)| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let board = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, board)
    };
    files("deploy/grafana/dashboards", &["json"]).into_iter().map(read).collect()
}

#[test]
fn each_dashboard_and_panel_has_its_own_id() {
    let mut uids = HashSet::new();
    for (name, board) in dashboards() {
        let uid = board["uid"].as_str().unwrap_or_else(|| panic!("{name}: no uid"));
        assert!(!uid.is_empty() && uids.insert(uid.to_owned()), "{name}: {uid} is another dashboard's");
        let mut ids = HashSet::new();
        let mut panels: Vec<_> = board["panels"].as_array().unwrap().iter().collect();
        assert!(!panels.is_empty(), "{name}");
        while let Some(panel) = panels.pop() {
            let id = panel["id"].as_u64().unwrap_or_else(|| panic!("{name}: a panel without id: {panel}"));
            assert!(ids.insert(id), "{name}: two panels have the id {id}");
            // A row that is folded holds its panels.
            panels.extend(panel["panels"].as_array().into_iter().flatten());
        }
    }
}
