//! The tables of `docs/reference/metrics.md` are the catalogues (`UPDATE_DOCS=1` writes them).

use super::root;
use postern_telemetry::catalogue::{Kind, Metric};
use postern_telemetry::own;

/// The markers before a table (the catalogue's name and ` -->` follow) and after it.
const BEGIN: &str = "<!-- metrics of ";
const END: &str = "<!-- end of metrics -->";

const CATALOGUES: [(&str, &[Metric]); 5] = [
    ("the gateway", postern_gateway::catalogue::METRICS),
    ("the issuer", postern_issuer::catalogue::METRICS),
    ("the agent", postern_client::catalogue::METRICS),
    ("links", postern_daemon::admin::catalogue::METRICS),
    ("every process", own::METRICS),
];

fn table(metrics: &[Metric]) -> String {
    let mut table = "\n| metric | kind | labels | what it says |\n|---|---|---|---|\n".to_owned();
    for Metric { name, kind, help, labels } in metrics {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        let labels: Vec<String> = labels
            .iter()
            .map(|label| match label.values {
                Some(values) => format!("`{}`: {}", label.name, values.join(", ")),
                None => format!("`{}`", label.name),
            })
            .collect();
        table += &format!("| `{name}` | {kind} | {} | {help} |\n", labels.join("; "));
    }
    table
}

/// The page with every table as the catalogues have it now.
pub(super) fn renewed(page: &str) -> String {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").expect("the mark names a catalogue");
        let (_, rest) = rest.split_once(END).expect("a table ends");
        let (_, metrics) = CATALOGUES.iter().find(|(known, _)| *known == name).expect("a known catalogue");
        text += &format!("{BEGIN}{name} -->\n{}\n{END}{rest}", table(metrics));
    }
    text
}

#[test]
fn the_tables_of_metrics_are_the_catalogues() {
    let path = root().join("docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    for (name, _) in CATALOGUES {
        assert_eq!(page.matches(&format!("{BEGIN}{name} -->")).count(), 1, "one table of {name}");
    }
    let renewed = renewed(&page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &renewed).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        page == renewed,
        "docs/reference/metrics.md differs from the catalogues; write it with\n\
         UPDATE_DOCS=1 cargo test --workspace --test across docs::"
    );
}
