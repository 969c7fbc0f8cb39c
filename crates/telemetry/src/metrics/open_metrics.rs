//! Rewrites the metrics page to OpenMetrics 1.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>), which can carry
//! exemplars. The exporter writes only Prometheus' older text format. Names, labels and values stay as they are, and a series
//! is the same in both.

use super::exemplars::Exemplars;
use std::fmt::Write;

/// Suffix of a counter's samples, which the name of its family does not have.
const TOTAL: &str = "_total";

/// Rewrites a page of text format 0.0.4.
pub(super) fn rewrite(page: &str, exemplars: &Exemplars) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    for line in page.lines().filter(|line| !line.is_empty()) {
        // Writing to a String cannot fail.
        let _ = match (line.strip_prefix("# HELP "), line.strip_prefix("# TYPE ")) {
            (Some(help), _) => writeln!(text, "# HELP {}", described(help)),
            (_, Some(kind)) => writeln!(text, "# TYPE {}", typed(kind)),
            _ => match exemplars.of_line(line) {
                Some(exemplar) => writeln!(text, "{line} {exemplar}"),
                None => writeln!(text, "{line}"),
            },
        };
    }
    text.push_str("# EOF\n");
    text
}

/// Escapes quotation marks, which the older format does not.
fn described(help: &str) -> String {
    let (name, sentence) = help.split_once(' ').unwrap_or((help, ""));
    format!("{} {}", family(name), sentence.replace('"', "\\\""))
}

fn typed(kind: &str) -> String {
    match kind.split_once(' ') {
        // A dependency's counter, whose samples OpenMetrics does not allow in a counter family.
        Some((name, "counter")) if !name.ends_with(TOTAL) => format!("{name} unknown"),
        Some((name, kind)) => format!("{} {kind}", family(name)),
        None => kind.to_owned(),
    }
}

fn family(name: &str) -> &str {
    name.strip_suffix(TOTAL).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_renamed_and_series_are_not() {
        let page = "# HELP a_total With \"b\" and \\\\.\n# TYPE a_total counter\na_total{b=\"c \\\" d\"} 1\n\n\
                    # TYPE e gauge\ne 0.5\n\n# TYPE f counter\nf 2\n\n\
                    # TYPE g_seconds histogram\ng_seconds_bucket{le=\"+Inf\"} 3\ng_seconds_sum 1\ng_seconds_count 3\n\n";
        let expected = "# HELP a With \\\"b\\\" and \\\\.\n# TYPE a counter\na_total{b=\"c \\\" d\"} 1\n\
                        # TYPE e gauge\ne 0.5\n# TYPE f unknown\nf 2\n\
                        # TYPE g_seconds histogram\ng_seconds_bucket{le=\"+Inf\"} 3\ng_seconds_sum 1\n\
                        g_seconds_count 3\n# EOF\n";
        assert_eq!(rewrite(page, &Exemplars::now()), expected);
    }
}
