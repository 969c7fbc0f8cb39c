//! `postern doctor --links URL`: the link table of a running process, read from its admin listener.

use super::admin::{get, unanswered};
use crate::failure::Failure;
use crate::stdio::print_line;
use postern_daemon::examination::written;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// A link that lost more than this share of its attempts of the last ten minutes is called bad.
const BAD: f64 = 0.01;

/// What is read of a snapshot; its other fields are the page's.
#[derive(Deserialize)]
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

/// Link, address, attempts, lost, the lost share of the last ten minutes, p50 and p99 of the same in seconds.
type Row = (String, String, u64, u64, Option<f64>, Option<f64>, Option<f64>);

/// The daemons in the process whose admin address is `admin`, such as "gateway".
pub(crate) async fn daemons(admin: &str) -> Result<String, Failure> {
    let sections = snapshot(&format!("{admin}/live.json")).await?.sections;
    let has = |id: &str| sections.iter().any(|section| section.id == id);
    let found = [("checks", "gateway"), ("issuer", "issuer"), ("agent", "agent")].into_iter();
    let found: Vec<&str> = found.filter(|(id, _)| has(id)).map(|(_, name)| name).collect();
    Ok(match found.as_slice() {
        [] => "process".to_owned(),
        [one] => (*one).to_owned(),
        _ => "up".to_owned(),
    })
}

/// The links of a process that lose more than they may.
pub(super) async fn bad(admin: &str) -> Result<Vec<String>, Failure> {
    let rows = links(&format!("{admin}/live.json")).await?;
    Ok(rows.into_iter().filter(is_bad).map(|(link, address, ..)| format!("{link} {address}")).collect())
}

/// One lost attempt alone is a server that was started a moment later, or again.
fn is_bad(row: &Row) -> bool {
    row.3 > 1 && row.4.unwrap_or(0.0) > BAD
}

/// Prints the table; a failure names the links that are bad.
pub(super) async fn check(admin: &str) -> Result<(), Failure> {
    let admin = admin.trim_end_matches('/');
    let rows = links(&format!("{admin}/live.json")).await?;
    if rows.is_empty() {
        print_line(format_args!(
            "{admin}: no link has been used yet; a gateway with an embedded store has one to its issuer only."
        ))?;
        return Ok(());
    }
    print_line(format_args!(
        "{:<8}  {:<28} {:>10} {:>8} {:>8} {:>9} {:>9}",
        "link", "address", "attempts", "lost", "10 min", "p50", "p99"
    ))?;
    let mut bad = Vec::new();
    for row in rows {
        if is_bad(&row) {
            bad.push(format!("{} {}", row.0, row.1));
        }
        let (link, address, attempts, lost, share, p50, p99) = row;
        let share = share.unwrap_or(0.0);
        print_line(format_args!(
            "{link:<8}  {address:<28} {attempts:>10} {lost:>8} {:>7.2}% {:>9} {:>9}",
            share * 100.0,
            time(p50),
            time(p99)
        ))?;
    }
    if bad.is_empty() {
        return Ok(());
    }
    Err(Failure::runtime(format_args!(
        "{}: more than 1 of 100 attempts in the last 10 minutes got no answer: look at what is there, and at the way to it",
        bad.join(", ")
    )))
}

/// The rows of the link table.
async fn links(url: &str) -> Result<Vec<Row>, Failure> {
    let found = snapshot(url).await?.sections.into_iter().find(|section| section.id == "links");
    let tables: Option<Vec<Table>> = found
        .map(|section| serde_json::from_value(section.tables))
        .transpose()
        .map_err(|error| no_snapshot(url, &error))?;
    Ok(tables.into_iter().flatten().flat_map(|table| table.rows).collect())
}

async fn snapshot(url: &str) -> Result<Snapshot, Failure> {
    let answer = get(url, |status| status.is_success()).await;
    let (_, body) = answer.map_err(|reason| unanswered(url, reason))?;
    serde_json::from_slice(&body).map_err(|error| no_snapshot(url, &error))
}

fn no_snapshot(url: &str, error: &serde_json::Error) -> Failure {
    unanswered(url, format_args!("the answer is not a snapshot: {error}"))
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
