//! Everything that can be queried: registered metrics and recorded series, their labels, and the labels' values.

use super::queries::{Matcher, Selector, groupings, selectors};
use crate::catalogue::CATALOGUES;
use postern_telemetry::catalogue::{Kind, Label, Metric};
use postern_telemetry::{metrics, own};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Labels and their values; `None` where a value can be anything.
type Labels = BTreeMap<String, Option<BTreeSet<String>>>;

pub struct Catalogue {
    series: BTreeMap<String, Labels>,
    jobs: Vec<String>,
}

/// Returns the possible values of a metric's label.
fn values(label: &Label) -> Option<BTreeSet<String>> {
    label.values.map(|values| values.iter().map(|value| (*value).to_owned()).collect())
}

/// Every metric that the binary can record.
fn declared() -> impl Iterator<Item = &'static Metric> {
    own::METRICS.iter().chain(CATALOGUES.iter().copied().flatten())
}

impl Catalogue {
    pub fn of_the_project(jobs: Vec<String>) -> Self {
        let mut series = BTreeMap::new();
        for metric in declared() {
            let labels: Labels =
                metric.labels.iter().map(|label| (label.name.to_owned(), values(label))).collect();
            let Kind::Histogram(buckets) = metric.kind else {
                series.insert(metric.name.to_owned(), labels);
                continue;
            };
            // A histogram has no series of its bare name.
            for suffix in ["_sum", "_count"] {
                series.insert(format!("{}{suffix}", metric.name), labels.clone());
            }
            let bounds = buckets.iter().map(f64::to_string).chain(["+Inf".to_owned()]).collect();
            let mut labels = labels;
            labels.insert("le".to_owned(), Some(bounds));
            series.insert(format!("{}_bucket", metric.name), labels);
        }
        let others = metrics::PROCESS.iter().chain(&["up"]);
        series.extend(others.map(|name| ((*name).to_owned(), Labels::new())));
        Self { series, jobs }
    }

    /// Adds a recorded series: its labels are, at most, those of what it is made of.
    pub fn record(&mut self, name: &str, expression: &str) {
        let mut labels = Labels::new();
        for selector in selectors(expression) {
            // A missing one is reported where the files are read.
            for (label, values) in self.series.get(&selector.name).into_iter().flatten() {
                match (labels.entry(label.clone()).or_insert_with(|| Some(BTreeSet::new())), values) {
                    (Some(known), Some(values)) => known.extend(values.iter().cloned()),
                    (known, _) => *known = None,
                }
            }
        }
        self.series.insert(name.to_owned(), labels);
    }

    /// Returns the faults of a selector.
    pub fn faults(&self, selector: &Selector, any_job: bool) -> Vec<String> {
        let name = &selector.name;
        let Some(labels) = self.series.get(name) else {
            return vec![format!("{name} is not registered, nor recorded by a rule")];
        };
        let fault = |matcher: &Matcher| {
            let Matcher { label, value, .. } = matcher;
            let known = match label.as_str() {
                "instance" => return None,
                "job" if any_job => return None,
                "job" => self.jobs.iter().cloned().collect(),
                _ => match labels.get(label) {
                    None => return Some(format!("{name} has no label {label}")),
                    Some(None) => return None,
                    Some(Some(known)) => known.clone(),
                },
            };
            let wrong = literals(matcher).into_iter().find(|value| !is_in(&known, label, value))?;
            Some(format!("{name}: {label} is never {wrong:?} (in {value:?})"))
        };
        selector.matchers.iter().filter_map(fault).collect()
    }

    /// Labels that a query groups by, and that no series has.
    pub fn grouping_faults(&self, text: &str) -> Vec<String> {
        let known: BTreeSet<_> = self.series.values().flat_map(BTreeMap::keys).map(String::as_str).collect();
        let unknown = |label: &String| {
            !known.contains(&label[..]) && !["instance", "job", "__name__"].contains(&&label[..])
        };
        groupings(text)
            .into_iter()
            .filter(unknown)
            .map(|label| format!("no series has a label {label}"))
            .collect()
    }
}

/// Bounds of buckets are numbers: 1 and 1.0 are one.
fn is_in(known: &BTreeSet<String>, label: &str, value: &str) -> bool {
    let same = |bound: &String| bound.parse::<f64>().ok() == value.parse::<f64>().ok();
    if label == "le" { value.parse::<f64>().is_ok() && known.iter().any(same) } else { known.contains(value) }
}

/// The values that a matcher names: all alternatives of a pattern that are plain words. Grafana's variables are none.
fn literals(matcher: &Matcher) -> Vec<&str> {
    if !matcher.operator.ends_with('~') {
        return if matcher.value.starts_with('$') { Vec::new() } else { vec![&matcher.value] };
    }
    let plain = |value: &&str| value.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    matcher.value.trim_matches(['(', ')']).split('|').filter(plain).collect()
}

/// The checker's errors for a text.
fn faults_of(text: &str) -> Vec<String> {
    let mut catalogue = Catalogue::of_the_project(vec!["postern-gateway".to_owned()]);
    catalogue.record("i:checks:rate5m", "sum(rate(postern_check_duration_seconds_count[5m]))");
    let wrong = selectors(text).iter().flat_map(|one| catalogue.faults(one, false)).collect::<Vec<_>>();
    wrong.into_iter().chain(catalogue.grouping_faults(text)).collect()
}

#[test]
fn no_name_is_used_twice() {
    let mut seen = HashSet::new();
    for Metric { name, .. } in declared() {
        assert!(seen.insert(*name), "{name} is declared twice");
    }
    assert!(seen.len() > 30, "only {} metrics were found", seen.len());
}

/// <https://prometheus.io/docs/practices/naming/>
#[test]
fn names_follow_prometheus() {
    for Metric { name, kind, help, labels } in declared() {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        assert!(name.starts_with("postern_") && plain(name), "{name}");
        assert_eq!(name.ends_with("_total"), matches!(kind, Kind::Counter), "{name}");
        assert!(help.ends_with('.') && help.trim() == *help && !help.contains("  "), "{name}: {help:?}");
        if let Kind::Histogram(buckets) = kind {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{name}");
        }
        for Label { name: label, values } in *labels {
            assert!(plain(label) && *label != "le", "{name}");
            let values = values.unwrap_or_default();
            assert_eq!(values.iter().collect::<HashSet<_>>().len(), values.len(), "{name}: {values:?}");
            assert!(values.iter().all(|value| plain(value) || value.parse::<u32>().is_ok()), "{name}");
        }
    }
}

#[test]
fn a_wrong_name_label_or_value_is_found() {
    for (text, fault) in [
        ("postern_request_total", "postern_request_total is not registered"),
        ("process_cpu_seconds", "process_cpu_seconds is not registered"),
        ("postern_check_duration_seconds", "postern_check_duration_seconds is not registered"),
        ("postern_requests_total_count", "is not registered"),
        ("postern_tunnels_open_bucket", "is not registered"),
        ("i:check:rate5m", "i:check:rate5m is not registered, nor recorded"),
        (r#"postern_requests_total{result="opened"}"#, "has no label result"),
        (r#"postern_requests_total{le="1"}"#, "has no label le"),
        (r#"postern_requests_total{outcome="open"}"#, "outcome is never \"open\""),
        (r#"postern_requests_total{outcome!="open"}"#, "outcome is never \"open\""),
        (r#"postern_requests_total{outcome=~"opened|issued"}"#, "outcome is never \"issued\""),
        (r#""sum(postern_requests_total{outcome!~\"opened|no_tokens\"})""#, "outcome is never \"no_tokens\""),
        (r#"postern_issuances_total{outcome="already_spent"}"#, "outcome is never"),
        (r#"postern_check_duration_seconds_bucket{le="0.04"}"#, "le is never \"0.04\""),
        (r#"i:checks:rate5m{stage="sum"}"#, "stage is never \"sum\""),
        (r#"i:checks:rate5m{outcome="opened"}"#, "has no label outcome"),
        (r#"up{job="gateway"}"#, "job is never \"gateway\""),
        (r#"postern_keys{job="gateway"}"#, "job is never \"gateway\""),
        ("sum by (outcom) (postern_requests_total)", "no series has a label outcom"),
    ] {
        let found = faults_of(text);
        assert!(found.len() == 1 && found[0].contains(fault), "{text}: {found:?}");
    }
}

#[test]
fn what_is_right_is_let_through() {
    for text in [
        r#"sum by (le) (rate(postern_check_duration_seconds_bucket{le=~"0.05|\\+Inf", stage="get"}[5m]))"#,
        r#"postern_check_duration_seconds_bucket{le="1.0"} / ignoring (le) postern_check_duration_seconds_count"#,
        r#"postern_requests_total{instance=~\"$instance\", outcome=~\"$outcome\", job="postern-gateway"}"#,
        r#"postern_link_lost_total{link="store", address="10.0.0.1:11211"}"#,
        r#"postern_requests_total{outcome=~"dial_.+|opened", job=~"postern-.+"} i:checks:rate5m{stage="total"}"#,
        "process_open_fds / process_max_fds, postern_tokens_issued_total{type=\"2\"}",
    ] {
        assert_eq!(faults_of(text), [""; 0], "{text}");
    }
}
