//! `postern doctor --links URL`: the link table of a running process, read from its admin listener.

use super::{PATIENCE, unanswered};
use crate::failure::Failure;
use bytes::Bytes;
use postern_service::http::{ClientOptions, chain, client, fetch_limited};
use serde::Deserialize;
use serde_json::Value;

/// The largest snapshot that is read: one has some kilobytes.
const LIMIT: usize = 1 << 20;
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

/// Prints the table; a failure names the links that are bad.
pub(super) async fn check(admin: &str) -> Result<(), Failure> {
    let admin = admin.trim_end_matches('/');
    let rows = links(&format!("{admin}/live.json")).await?;
    if rows.is_empty() {
        println!(
            "{admin}: no link has been used yet; a gateway with an embedded store has one to its issuer only."
        );
        return Ok(());
    }
    println!(
        "{:<8}  {:<28} {:>10} {:>8} {:>8} {:>9} {:>9}",
        "link", "address", "attempts", "lost", "10 min", "p50", "p99"
    );
    let mut bad = Vec::new();
    for (link, address, attempts, lost, share, p50, p99) in rows {
        let share = share.unwrap_or(0.0);
        println!(
            "{link:<8}  {address:<28} {attempts:>10} {lost:>8} {:>7.2}% {:>9} {:>9}",
            share * 100.0,
            time(p50),
            time(p99)
        );
        if share > BAD {
            bad.push(format!("{link} {address}"));
        }
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
    let failed = |reason: String| unanswered(url, reason);
    let body = fetch(url).await.map_err(failed)?;
    let no_snapshot = |error: serde_json::Error| failed(format!("the answer is not a snapshot: {error}"));
    let snapshot: Snapshot = serde_json::from_slice(&body).map_err(no_snapshot)?;
    let found = snapshot.sections.into_iter().find(|section| section.id == "links");
    let tables: Option<Vec<Table>> =
        found.map(|section| serde_json::from_value(section.tables)).transpose().map_err(no_snapshot)?;
    Ok(tables.into_iter().flatten().flat_map(|table| table.rows).collect())
}

async fn fetch(url: &str) -> Result<Bytes, String> {
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    let client = client(&options).map_err(|error| error.to_string())?;
    let answer = client.get(url).send().await.map_err(|error| chain(&error))?;
    if !answer.status().is_success() {
        return Err(format!("the answer is {}", answer.status()));
    }
    fetch_limited(answer, LIMIT).await.map_err(|error| error.to_string())
}

/// Seconds, as people write them.
fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_units_that_fit() {
        let written = [None, Some(0.000_042), Some(0.044), Some(2.5)].map(time);
        assert_eq!(written, ["-", "42 us", "44.0 ms", "2.50 s"]);
    }
}
