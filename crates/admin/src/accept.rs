//! The format of `/metrics`: OpenMetrics for a scraper that prefers it, such as Prometheus, and otherwise Prometheus's older text
//! format.

use http::{HeaderMap, header};

pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns `true` if `Accept` (RFC 9110, section 12.5.1) prefers OpenMetrics 1.0 to plain text, or ranks both equally. Wildcards
/// do not count.
pub(crate) fn prefers_open_metrics(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open, mut plain) = (0.0, 0.0);
    for (media_type, version, weight) in values.flat_map(|value| value.split(',')).filter_map(range) {
        let preferred = match media_type {
            "application/openmetrics-text" if version.is_none_or(|version| version == "1.0.0") => &mut open,
            "text/plain" => &mut plain,
            _ => continue,
        };
        *preferred = weight.max(*preferred);
    }
    open > 0.0 && open >= plain
}

/// Parses a media range into type, `version` and `q`; `None` if its `q` is not a number.
fn range(text: &str) -> Option<(&str, Option<&str>, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let (media_type, mut version, mut weight) = (parts.next()?, None, 1.0);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name {
            "version" => version = Some(value.trim_matches('"')),
            "q" => weight = value.parse().ok()?,
            _ => {}
        }
    }
    Some((media_type, version, weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_is_for_who_prefers_it() {
        let prefers = |accept: &str| {
            let headers = [(header::ACCEPT, accept.parse().unwrap())].into_iter().collect();
            prefers_open_metrics(&headers)
        };
        for wanted in [
            "application/openmetrics-text",
            "text/plain;q=0.5, application/openmetrics-text; version=\"1.0.0\"; charset=utf-8",
            // Prometheus 2.42 and 3.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        ] {
            assert!(prefers(wanted), "{wanted}");
        }
        for unwanted in [
            "",
            "*/*",
            "text/html, application/xhtml+xml, */*;q=0.8",
            "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=high",
        ] {
            assert!(!prefers(unwanted), "{unwanted}");
        }
        assert!(!prefers_open_metrics(&HeaderMap::new()));
    }
}
