//! The links of a running process, and the daemons in it, by the snapshot of its live page.

use super::admin::get;
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_daemon::examination::written;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// A link that lost more than this share of its attempts of the last ten minutes is called bad.
const BAD: f64 = 0.01;

/// A process without a section by which its daemon is known.
pub(crate) const UNKNOWN: &str = "process";

/// What is read of a snapshot; its other fields are the page's.
#[derive(Deserialize)]
pub(crate) struct Snapshot {
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    id: String,
    tables: Value,
}

#[derive(Deserialize)]
struct Table {
    rows: Vec<Row>,
}

/// Link, address, attempts, lost, the lost share of the last ten minutes, p50 and p99 of the same in seconds.
type Row = (String, String, u64, u64, Option<f64>, Option<f64>, Option<f64>);

/// The snapshot of the process whose admin address is `admin`; `None` where it gives none.
pub(crate) async fn snapshot(admin: &str) -> Option<Snapshot> {
    let (_, body) = get(&format!("{admin}/live.json"), |status| status.is_success()).await.ok()?;
    serde_json::from_slice(&body).ok()
}

impl Snapshot {
    /// The daemon in the process, such as "gateway"; "up" for several.
    pub(crate) fn daemon(&self) -> &'static str {
        let has = |id: &str| self.sections.iter().any(|section| section.id == id);
        let found = [("checks", "gateway"), ("issuer", "issuer"), ("agent", "agent")].into_iter();
        match found.filter(|(id, _)| has(id)).map(|(_, name)| name).collect::<Vec<_>>().as_slice() {
            [] => UNKNOWN,
            [one] => one,
            _ => "up",
        }
    }

    /// The links that lose more than they may.
    pub(crate) fn bad(&self) -> Vec<String> {
        let bad = self.links().into_iter().filter(is_bad);
        bad.map(|(link, address, ..)| format!("{link} {address}")).collect()
    }

    /// Prints a table of the links that have been used.
    pub(crate) fn print_links(&self) -> Result<(), Failure> {
        let rows = self.links();
        if rows.is_empty() {
            return Ok(());
        }
        print_line(format_args!(
            "\n{:<8}  {:<28} {:>10} {:>8} {:>8} {:>9} {:>9}",
            "link", "address", "attempts", "lost", "10 min", "p50", "p99"
        ))?;
        for (link, address, attempts, lost, share, p50, p99) in rows {
            print_line(format_args!(
                "{link:<8}  {address:<28} {attempts:>10} {lost:>8} {:>7.2}% {:>9} {:>9}",
                share.unwrap_or(0.0) * 100.0,
                time(p50),
                time(p99)
            ))?;
        }
        Ok(())
    }

    fn links(&self) -> Vec<Row> {
        let of_links = self.sections.iter().filter(|section| section.id == "links");
        let tables = of_links.filter_map(|section| Vec::<Table>::deserialize(&section.tables).ok());
        tables.flatten().flat_map(|table| table.rows).collect()
    }
}

/// One lost attempt alone is a server that was started a moment later, or again.
fn is_bad(row: &Row) -> bool {
    row.3 > 1 && row.4.unwrap_or(0.0) > BAD
}

/// Seconds, as people write them.
fn time(seconds: Option<f64>) -> String {
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| "-".to_owned(), written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_lost_one_attempt_since_the_start_is_not_bad() {
        let row = |lost, share| ("gateway".into(), String::new(), 3, lost, Some(share), None, None);
        assert!(!is_bad(&row(1, 0.33)) && is_bad(&row(2, 0.66)) && !is_bad(&row(2, 0.005)));
    }

    #[test]
    fn times_are_written_in_units_that_fit() {
        let written = [None, Some(0.000_042), Some(0.044), Some(2.5)].map(time);
        assert_eq!(written, ["-", "42 us", "44.0 ms", "2.50 s"]);
    }
}
