//! Rules as the files in deploy/prometheus have them, read by their lines: a rule begins with a dash, its keys stand below
//! it, a text that is folded stands deeper than its key. promtool checks that it is YAML and PromQL.

use std::collections::{HashMap, HashSet};

/// A recording rule or an alert.
#[derive(Debug)]
pub struct Rule {
    pub is_alert: bool,
    pub name: String,
    values: HashMap<String, String>,
}

impl Rule {
    /// The value of a key, wherever it stands in the rule.
    pub fn value(&self, key: &str) -> &str {
        self.values.get(key).unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    /// The value of a label: `labels` is a map on one line.
    pub fn label(&self, label: &str) -> &str {
        let labels = self.value("labels").trim_matches(['{', '}']).split(',');
        let found = labels.filter_map(|pair| pair.split_once(':')).find(|(name, _)| name.trim() == label);
        found.unwrap_or_else(|| panic!("{} has no label {label}", self.name)).1.trim()
    }
}

/// The rules of a file.
pub fn of(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut key = None;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let depth = line.len() - line.trim_start().len();
        let line = line.trim();
        let begins = ["record", "alert"].into_iter().find_map(|kind| {
            let name = line.strip_prefix("- ")?.strip_prefix(kind)?.strip_prefix(':')?;
            Some((kind == "alert", name.trim().to_owned()))
        });
        if let Some((is_alert, name)) = begins {
            rules.push(Rule { is_alert, name, values: HashMap::new() });
            key = None;
            continue;
        }
        if line.starts_with("- ") {
            key = None; // another group
            continue;
        }
        let Some(rule) = rules.last_mut() else { continue };
        match &key {
            // More of a folded text.
            Some((name, deep)) if depth > *deep || line.is_empty() => {
                let value: &mut String = rule.values.get_mut(name).unwrap();
                *value = format!("{value} {line}").trim().to_owned();
            }
            _ => {
                let Some((name, value)) = line.split_once(':') else { continue };
                let value = value.trim().trim_start_matches(">-").trim_matches('"').to_owned();
                let before = rule.values.insert(name.to_owned(), value);
                assert_eq!(before, None, "{} has two {name}", rule.name);
                // It may hold keys, and no text.
                key = (!["labels", "annotations"].contains(&name)).then(|| (name.to_owned(), depth));
            }
        }
    }
    rules
}

/// Every value of a key in a file.
pub fn values(key: &str, text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    lines.filter_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned())).collect()
}

/// `PosternGatewayDown` as it stands in an anchor: `postern-gateway-down`.
pub fn kebab(name: &str) -> String {
    let hyphen = |c: char| if c.is_ascii_uppercase() { "-" } else { "" };
    let words: String = name.chars().map(|c| format!("{}{}", hyphen(c), c.to_ascii_lowercase())).collect();
    words.trim_start_matches('-').to_owned()
}

/// The anchors of a document's headings, as GitHub makes them: lower case, hyphens for spaces, no punctuation.
pub fn anchors(markdown: &str) -> HashSet<String> {
    let headings =
        markdown.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    headings
        .map(|text| text.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// Returns whether a test of the rules expects the alert to fire: as a sample of `ALERTS`, or in a list `exp_alerts`.
pub fn fires_in(alert: &str, tests: &str) -> bool {
    let sample = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"");
    let as_sample = tests.lines().any(|line| line.contains(&sample) && line.contains("value: 1"));
    let name = format!("alertname: {alert}\n");
    let named = tests.split(&name).skip(1);
    let as_alert = named.map(|after| after.split("alertname:").next().unwrap_or(after)).any(|test| {
        test.split_once("exp_alerts:").is_some_and(|(_, list)| list.trim_start().starts_with("- exp_labels"))
    });
    as_sample || as_alert
}

#[test]
fn rules_are_read_with_their_folded_texts() {
    let text = "groups:
  - name: g
    rules:
      - record: a:b:rate5m
        expr: rate(b[5m])
      # Not a rule.
      - alert: AbCd
        expr: >-
          a:b:rate5m > 1
          and c
        for: 1m
        labels: {severity: critical, team: x}
        annotations:
          summary: \"It is {{ $value }}.\"
          description: >-
            One line: and
            another.
          runbook: docs/x.md#y
  - name: h
    rules:
      - record: c:d:e
        expr: f
";
    let rules = of(text);
    let names: Vec<_> = rules.iter().map(|rule| (rule.is_alert, rule.name.as_str())).collect();
    assert_eq!(names, [(false, "a:b:rate5m"), (true, "AbCd"), (false, "c:d:e")]);
    assert_eq!(rules[1].value("expr"), "a:b:rate5m > 1 and c");
    assert_eq!((rules[1].label("severity"), rules[1].label("team")), ("critical", "x"));
    assert_eq!(rules[1].value("summary"), "It is {{ $value }}.");
    assert_eq!(rules[1].value("description"), "One line: and another.");
    assert_eq!(rules[1].value("runbook"), "docs/x.md#y");
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    assert_eq!(kebab("PosternGatewayDown"), "postern-gateway-down");
    let anchors = anchors("# A\n### Alert: Postern gateway down\ntext\n## `b` (c)");
    let expected = ["a", "alert-postern-gateway-down", "b-c"].map(str::to_owned);
    assert_eq!(anchors, expected.into());
}

#[test]
fn an_alert_that_only_stays_silent_is_not_tested() {
    let sample = |state, value| {
        format!(
            "- {{labels: 'ALERTS{{alertname=\"A\", alertstate=\"{state}\", x=\"y\"}}', value: {value}}}\n"
        )
    };
    assert!(fires_in("A", &sample("firing", 1)));
    assert!(!fires_in("A", &sample("pending", 1)) && !fires_in("B", &sample("firing", 1)));
    assert!(fires_in("A", "- alertname: A\n  eval_time: 5m\n  exp_alerts:\n    - exp_labels: {}\n"));
    assert!(!fires_in(
        "A",
        "- alertname: A\n  exp_alerts: []\n- alertname: B\n  exp_alerts:\n    - exp_labels: {}\n"
    ));
}
