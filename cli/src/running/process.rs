//! A running process: readiness and version, and the links in the snapshot of its live page.

use super::{NoAnswer, get};
use crate::failure::Failure;
use crate::stdio::print_line;
use http::StatusCode;
use postern_daemon::examination::written;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// Prefix of the metric whose label is the running version.
const BUILD_INFO: &str = "postern_build_info{version=\"";
/// Number of lost attempts since the start from which a link is lossy, as in its alert: each restart of a server costs a few.
const LOST: u64 = 10;
/// Share of lost attempts in the last ten minutes above which it is.
const LOST_SHARE: f64 = 0.05;
/// Name for a process whose snapshot has no daemon's section.
pub(crate) const UNKNOWN: &str = "process";

pub(crate) struct Running {
    pub(crate) is_ready: bool,
    /// Answer of `/readyz`: "ready", or the reasons, one a line.
    pub(crate) said: String,
    pub(crate) metrics: String,
    sections: Vec<Section>,
}

/// The part of a snapshot that is read here; the live page uses the other fields.
#[derive(Default, Deserialize)]
struct Snapshot {
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

/// (link, address, attempts, lost, lost share in the last ten minutes, p50 and p99 in the last ten minutes, in seconds)
type Row = (String, String, u64, u64, Option<f64>, Option<f64>, Option<f64>);

impl Running {
    /// Asks the process whose admin URL is `url`. Fails with [`NoAnswer::Unusable`] if it is not Postern's.
    pub(crate) async fn ask(url: &str) -> Result<Self, NoAnswer> {
        let (status, body) =
            get(&format!("{url}/readyz"), |status| matches!(status.as_u16(), 200 | 503)).await?;
        let (is_ready, said) = (status == StatusCode::OK, String::from_utf8_lossy(&body).into_owned());
        if is_ready && !said.starts_with("ready\n") {
            return Err(NoAnswer::Unusable("the answer to /readyz is not Postern's".to_owned()));
        }
        let snapshot = get(&format!("{url}/live.json"), |status| status.is_success()).await.ok();
        let snapshot = snapshot.and_then(|(_, body)| serde_json::from_slice::<Snapshot>(&body).ok());
        let sections = snapshot.unwrap_or_default().sections;
        Ok(Self { is_ready, said, metrics: metrics(url).await, sections })
    }

    /// Returns the daemon in the process, such as "gateway"; "up" for several.
    pub(crate) fn daemon(&self) -> &'static str {
        let has = |id: &str| self.sections.iter().any(|section| section.id == id);
        let found = [("checks", "gateway"), ("issuer", "issuer"), ("agent", "agent")].into_iter();
        match found.filter(|(id, _)| has(id)).map(|(_, name)| name).collect::<Vec<_>>().as_slice() {
            [] => UNKNOWN,
            [one] => one,
            _ => "up",
        }
    }

    /// Returns `false` while the process reads its files: it may not have opened those that a daemon keeps open.
    pub(crate) fn has_started(&self) -> bool {
        !self.said.lines().any(|line| line.starts_with("start: "))
    }

    pub(crate) fn version(&self) -> Option<&str> {
        let rest = self.metrics.lines().find_map(|line| line.strip_prefix(BUILD_INFO))?;
        rest.split_once('"').map(|(version, _)| version)
    }

    pub(crate) fn lossy_links(&self) -> Vec<String> {
        let lossy = self.links().into_iter().filter(is_lossy);
        lossy
            .map(|(link, address, attempts, lost, share, ..)| {
                let share = share.unwrap_or_default() * 100.0;
                format!("{link} {address}, {share:.0}% ({lost} of {attempts} since the start)")
            })
            .collect()
    }

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

/// Returns the metrics of a process, as text; none if it serves none.
pub(crate) async fn metrics(url: &str) -> String {
    let answer = get(&format!("{url}/metrics"), |status| status == StatusCode::OK).await;
    answer.map_or_else(|_| String::new(), |(_, body)| String::from_utf8_lossy(&body).into_owned())
}

fn is_lossy(row: &Row) -> bool {
    row.3 >= LOST && row.4.unwrap_or(0.0) > LOST_SHARE
}

/// Formats seconds with a suitable unit.
fn time(seconds: Option<f64>) -> String {
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| "-".to_owned(), written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_lost_what_a_restart_costs_is_not_lossy() {
        let row = |lost, share| ("gateway".into(), String::new(), 20, lost, Some(share), None, None);
        assert!(!is_lossy(&row(9, 0.45)) && is_lossy(&row(10, 0.5)) && !is_lossy(&row(10, 0.05)));
    }

    #[test]
    fn times_are_written_in_units_that_fit() {
        let written = [None, Some(0.000_042), Some(0.044), Some(2.5)].map(time);
        assert_eq!(written, ["-", "42 us", "44.0 ms", "2.50 s"]);
    }
}
